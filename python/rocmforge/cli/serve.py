"""`rocmforge serve`: its flags are the settings of the server and of the engine, each from its own list."""

import dataclasses
import importlib.util
import inspect
import logging
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from rocmforge import AsyncLLM
from rocmforge._rocmforge import default_settings
from rocmforge.cli.common import A_MODEL, byte_count, completer, fail, json_object, model_path, show_log
from rocmforge.engine import LoadedModel
from rocmforge.hub import OLLAMA
from rocmforge.requests import arguments
from rocmforge.server.config import ServerConfig, meanings
from rocmforge.server.models.catalog import ModelSpec, from_folder, from_tables
from rocmforge.settings import PROCESS_DEFAULTS, ModelSettings, SpeculativeConfig

if TYPE_CHECKING:
    from collections.abc import Callable

INSTALL = "pip install 'rocmforge[serve]'"
SERVER_PANEL = "Server"
ENGINE_PANEL = "Engine"
# Settings in bytes, which may have a unit.
SIZES = ("kv_cache_memory", "gpu_memory_limit", "expert_cache", "kv_offload_memory", "kv_offload_disk")


def serve(**options: Any) -> None:
    """Serve one or more models over HTTP (OpenAI, Anthropic and Ollama APIs).

    The full reference is docs/server.md in the source repository.

    MODEL is a file, which is loaded at startup, or a folder, whose files are loaded on demand. The --config file can
    also define models, with a table models.NAME for each.

    Each setting is also an environment variable (ROCMFORGE_PORT) and a key in the --config file (port = 8000). Flags
    override variables, and variables override the file.
    """
    if importlib.util.find_spec("fastapi") is None:
        fail(f"the server needs packages that are not installed: {INSTALL}")
    # Other commands do not need these imports, nor does the help of this one.
    from rocmforge.server.app import create_app  # noqa: PLC0415
    from rocmforge.server.run import bind, run  # noqa: PLC0415

    show_log(logging.INFO)
    model = options.pop("model_argument") or options.pop("model")
    config = ServerConfig(**{name: _value(options[name]) for name in meanings()})
    if model is not None and not config.served_model_name and str(model).startswith(OLLAMA):
        # The file in Ollama's store is named by its digest.
        config = dataclasses.replace(config, served_model_name=(str(model).removeprefix(OLLAMA),))
    settings: ModelSettings = {name: options[name] for name in get_type_hints(ModelSettings)}  # type: ignore[assignment]
    with bind(config) as listening:
        run(create_app(_specs(model, options["config"], config, settings), config), config, listening)


def _specs(model: Path | None, file: Path | None, config: ServerConfig, settings: ModelSettings) -> list[ModelSpec]:
    """Returns the models to serve. A single model is loaded at once, so the server starts only if the load succeeds."""
    tables = None if file is None else tomllib.loads(file.read_text(encoding="utf-8")).get("models")
    if file is not None and tables is not None:
        if model is not None:
            fail(f"got the model {model} and tables [models.NAME] in {file}; give one of them")
        return from_tables(tables, file.parent, settings)
    path = model_path(model)
    if path.is_dir():
        return from_folder(path, settings)
    return [ModelSpec.single(path, config, settings=settings, engine=AsyncLLM(path, **settings))]


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Makes the settings in a file the defaults of the flags."""
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    known = ["model", "models", *meanings(), *get_type_hints(ModelSettings)]
    if unknown := [name for name in values if name not in known]:
        raise typer.BadParameter(f"{path}: got {', '.join(unknown)}, expected some of {', '.join(known)}")
    context.default_map = {name: value for name, value in values.items() if name != "models"}
    return path


def _parameters() -> list[inspect.Parameter]:
    """Lists what Typer makes arguments and flags of."""
    model = typer.Argument(
        metavar="MODEL",
        help=f"{A_MODEL}, or a folder of GGUF files; by default the demo model (rocmforge pull demo).",
        show_default=False,
    )
    same = typer.Option("--model", "-m", help="The same as MODEL.", show_default=False)
    file = typer.Option(help="A settings file in TOML.", is_eager=True, callback=_read, show_default=False)
    parameters = [
        _parameter("model_argument", Annotated[Path | None, model], None),
        _parameter("model", Annotated[Path | None, same], None),
        _parameter("config", Annotated[Path | None, file], None),
    ]
    server, server_meanings = get_type_hints(ServerConfig), meanings()
    parameters += [
        _setting(field.name, server[field.name], field.default, server_meanings[field.name], SERVER_PANEL)
        for field in dataclasses.fields(ServerConfig)
    ]
    engine = get_type_hints(ModelSettings)
    # A server outlives a device's fault: on a GPU, whose driver may end its process, the engine has its own.
    defaults: dict[str, Any] = {**default_settings(), **PROCESS_DEFAULTS, "isolate": None}
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
    parser: Callable[[Any], Any] | None = None
    metavar = None
    if SpeculativeConfig in kinds:
        parser, metavar = json_object, "JSON"
    elif name in SIZES:
        parser, metavar = byte_count, "BYTES"
        meaning += " A unit may follow, as in 8GB or 7.5GiB."
    flag = "--" + name.replace("_", "-")
    names = [f"{flag}/--no-{flag[2:]}"] if bool in (kind, *kinds) else [flag]
    # No default is shown if the meaning already names it.
    shown = default not in (None, "", [])
    option = typer.Option(
        *names,
        help=meaning,
        envvar=f"ROCMFORGE_{name.upper()}",
        show_envvar=False,
        rich_help_panel=panel,
        show_default=shown,
        parser=parser,
        metavar=metavar,
        autocompletion=completer(name),
    )
    return _parameter(name, Annotated[kind, option], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# Typer reads both.
serve.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
serve.__annotations__ = {name: each.annotation for name, each in inspect.signature(serve).parameters.items()}
