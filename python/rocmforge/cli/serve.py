"""`rocmforge serve`: its flags are the settings of the server and of the engine, each from its own list."""

import dataclasses
import importlib.util
import inspect
import logging
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer

from rocmforge import AsyncLLM, arguments
from rocmforge._rocmforge import default_settings
from rocmforge.cli.common import ModelOption, fail, model_path, show_log
from rocmforge.engine import LoadedModel
from rocmforge.server.config import ServerConfig, meanings
from rocmforge.settings import EngineSettings

INSTALL = "pip install 'rocmforge[serve]'"
SERVER_PANEL = "Server"
ENGINE_PANEL = "Engine"


def serve(**options: Any) -> None:
    """Serves a model over HTTP, by OpenAI's API and the engine's own; docs/server.md has the whole.

    Each setting is also a variable (ROCMFORGE_PORT) and a key of the file given with --config (port = 8000). A flag
    goes before the variable, and that before the file.
    """
    if importlib.util.find_spec("fastapi") is None:
        fail(f"the server needs packages that are not installed: {INSTALL}")
    # The other commands need none of it, and neither does this one to show its help.
    from rocmforge.server.app import create_app  # noqa: PLC0415
    from rocmforge.server.run import bind, run  # noqa: PLC0415

    show_log(logging.INFO)
    model = options.pop("model_argument") or options.pop("model")
    config = ServerConfig(**{name: _value(options[name]) for name in meanings()})
    engine_settings: EngineSettings = {name: options[name] for name in get_type_hints(EngineSettings)}  # type: ignore[assignment]
    with bind(config) as listening, AsyncLLM(model_path(model), **engine_settings) as engine:
        run(create_app(engine, config), config, listening)


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _read(context: typer.Context, path: Path | None) -> None:
    """Makes the settings in a file the defaults of the flags."""
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    known = ["model", *meanings(), *get_type_hints(EngineSettings)]
    if unknown := [name for name in values if name not in known]:
        raise typer.BadParameter(f"{path}: got {', '.join(unknown)}, expected some of {', '.join(known)}")
    context.default_map = values


def _parameters() -> list[inspect.Parameter]:
    """Lists what Typer makes arguments and flags of."""
    model = typer.Argument(metavar="MODEL", help="A GGUF file; the same as --model.", show_default=False)
    file = typer.Option(help="A file of settings, in TOML.", is_eager=True, callback=_read, show_default=False)
    parameters = [
        _parameter("model_argument", Annotated[Path | None, model], None),
        _parameter("model", ModelOption, None),
        _parameter("config", Annotated[Path | None, file], None),
    ]
    server, server_meanings = get_type_hints(ServerConfig), meanings()
    parameters += [
        _setting(field.name, server[field.name], field.default, server_meanings[field.name], SERVER_PANEL)
        for field in dataclasses.fields(ServerConfig)
    ]
    engine = get_type_hints(EngineSettings)
    defaults = cast("dict[str, Any]", default_settings())
    return parameters + [
        _setting(name, engine[name], defaults[name], meaning, ENGINE_PANEL)
        for name, meaning in arguments.meanings(LoadedModel).items()
        if name in engine
    ]


def _setting(name: str, kind: Any, default: Any, meaning: str, panel: str) -> inspect.Parameter:
    kinds = get_args(kind) if get_origin(kind) is not tuple else (kind,)
    if get_origin(kind) is tuple:
        kind, default = list[str], []
    elif os.PathLike[str] in kinds:
        kind = Path | None
    flag = "--" + name.replace("_", "-")
    names = [f"{flag}/--no-{flag[2:]}"] if bool in (kind, *kinds) else [flag]
    # Nothing is shown as the default where the meaning says what holds then.
    shown = default not in (None, "", [])
    option = typer.Option(
        *names,
        help=meaning,
        envvar=f"ROCMFORGE_{name.upper()}",
        show_envvar=False,
        rich_help_panel=panel,
        show_default=shown,
    )
    return _parameter(name, Annotated[kind, option], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# Typer reads both.
serve.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
serve.__annotations__ = {name: each.annotation for name, each in inspect.signature(serve).parameters.items()}
