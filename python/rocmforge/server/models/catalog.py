"""Which models a server has: one, the files of a folder, or the tables `[models.NAME]` of a file of settings."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args, get_origin, get_type_hints, is_typeddict

from rocmforge.async_llm import AsyncLLM
from rocmforge.errors import InvalidRequestError
from rocmforge.hub import is_name
from rocmforge.hub.choice import is_encoder
from rocmforge.server.config import ServerConfig
from rocmforge.settings import ModelSettings

# The suffix of the parts of a split model; the first part represents all.
PART = re.compile(r"-(?P<part>\d{5})-of-\d{5}$")
# The value of `mmproj` for a model that is to accept only text.
NO_ENCODER = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that a server can load, for `create_app`."""

    path: Path
    """Its GGUF file (the first one, for a split model), or its name: `hf:OWNER/REPO[:QUANT]` or `ollama:NAME[:TAG]`."""
    names: tuple[str, ...]
    """Clients call it by these. Answers to requests that name no model have the first."""
    settings: ModelSettings = field(default_factory=ModelSettings)
    chat_template: Path | None = None
    """A file with a chat template that replaces the model's."""
    engine: AsyncLLM | None = None
    """The model where it is loaded already; the server closes it."""
    stays_loaded: bool = False
    """True if it is never unloaded."""

    @classmethod
    def single(cls, path: Path, config: ServerConfig, **others: Any) -> Self:
        """Returns the only model of a server, with the names and the chat template of the settings."""
        names = config.served_model_name or (path.stem,)
        return cls(path=path, names=names, chat_template=config.chat_template, **others)


def from_folder(folder: Path, settings: ModelSettings) -> list[ModelSpec]:
    """Lists the GGUF files in a folder and the folders in it; each is called by its path there, without `.gguf`.

    Image encoders are not models of their own.

    Raises:
        InvalidRequestError: There is none.
    """
    specs = []
    for path in sorted(folder.rglob("*.gguf")):
        name = path.relative_to(folder).with_suffix("").as_posix()
        part = PART.search(name)
        if not is_encoder(path.name) and (part is None or int(part["part"]) == 1):
            specs.append(ModelSpec(path=path, names=(PART.sub("", name),), settings=settings))
    if not specs:
        raise InvalidRequestError(f"models: found no .gguf file in the folder {folder}; give one that has models")
    return specs


def from_tables(tables: Mapping[str, Any], folder: Path, settings: ModelSettings) -> list[ModelSpec]:
    """Reads the tables of a file of settings.

    Args:
        tables: A table for each model, by its name: `path` (a file, or a name as in `ModelSpec`), and as needed
            `aliases`, `chat_template` and settings of the engine.
        folder: The base of relative paths, also of a draft model's and of an image encoder's.
        settings: Those of models that have no others.

    Raises:
        InvalidRequestError: A table lacks its path, or has what it may not have.
    """
    specs = [_from_table(name, table, folder, settings) for name, table in tables.items()]
    if not specs:
        raise InvalidRequestError("models: got no table, expected one [models.NAME] for each model")
    return specs


def check_names(specs: Sequence[ModelSpec]) -> None:
    """Refuses models that cannot be told apart.

    Raises:
        InvalidRequestError: There is none, or two have the same name.
    """
    if not specs:
        raise InvalidRequestError("models: got none, expected at least one")
    owners: dict[str, ModelSpec] = {}
    for spec in specs:
        for name in spec.names:
            owner = owners.setdefault(name, spec)
            if owner is not spec:
                raise InvalidRequestError(
                    f"models: got the name {name!r} for {owner.path} and for {spec.path}, expected one model for each"
                )


def _from_table(name: str, table: Any, folder: Path, settings: ModelSettings) -> ModelSpec:
    place = f"models.{name}"
    kinds: dict[str, Any] = {
        "path": str,
        "aliases": list,
        "chat_template": str,
        **get_type_hints(ModelSettings),
    }
    if not isinstance(table, dict):
        raise InvalidRequestError(f"{place}: got {table!r}, expected a table with a path")
    for key, value in table.items():
        if key not in kinds:
            raise InvalidRequestError(f"{place}.{key}: it is not known; expected some of {', '.join(kinds)}")
        _check_kind(f"{place}.{key}", value, kinds[key])
    if "path" not in table:
        raise InvalidRequestError(f"{place}.path: it is missing; give the path of a .gguf file, or hf:OWNER/REPO")
    aliases = table.get("aliases", [])
    for alias in aliases:
        _check_kind(f"{place}.aliases", alias, str)
    own: Any = {key: value for key, value in table.items() if key in get_type_hints(ModelSettings)}
    template = table.get("chat_template")
    path = Path(table["path"])
    speculation = own.get("speculative_config", {})
    if isinstance(draft := speculation.get("model"), str) and not is_name(draft):
        own["speculative_config"] = {**speculation, "model": str(folder / draft)}
    if (encoder := own.get("mmproj", NO_ENCODER)) != NO_ENCODER:
        own["mmproj"] = str(folder / encoder)
    return ModelSpec(
        path=path if is_name(path) else folder / path,
        names=(name, *aliases),
        settings={**settings, **own},
        chat_template=None if template is None else folder / template,
    )


def _check_kind(place: str, value: Any, kind: Any) -> None:
    kinds = tuple(get_origin(one) or one for one in get_args(kind)) or (kind,)
    allowed = (_plain(one) for one in kinds if one is not type(None))
    names = list(dict.fromkeys(one.__name__ for one in allowed))
    # A number without a point is a number as well, and for Python a truth value is one of those.
    fits = type(value).__name__ in names or (isinstance(value, int) and type(value) is int and "float" in names)
    if not fits:
        raise InvalidRequestError(f"{place}: got {value!r}, expected {' or '.join(names)}")


def _plain(kind: Any) -> Any:
    """The kind of value that a file of settings has for one of ours."""
    if kind is os.PathLike:
        return str
    return dict if is_typeddict(kind) else kind
