"""The models on this machine that have names: the demo model, the hub's cache and Ollama's store."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocmforge.errors import InvalidRequestError, ModelFileError
from rocmforge.hub import DEMO, OLLAMA, demo
from rocmforge.hub.choice import ROOM_BYTES, ROOM_SHARE
from rocmforge.hub.ollama import find, names


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine."""

    name: str
    size: int
    """Bytes of its files."""
    path: Path

    def fits(self, free: int) -> bool:
        """True if it fits into `free` bytes with its KV cache, by the rule of `rocmforge pull`."""
        return self.size * ROOM_SHARE + ROOM_BYTES <= free


def local_models() -> list[LocalModel]:
    """Lists the models, by their names; those of the hub need the package huggingface_hub."""
    return sorted([*_demo(), *_hub(), *_ollama()], key=lambda model: model.name)


def _demo() -> Iterator[LocalModel]:
    path = demo.find()
    if path is not None:
        yield LocalModel(DEMO, path.stat().st_size, path)


def _hub() -> Iterator[LocalModel]:
    try:
        from rocmforge.hub.huggingface import cached_models  # noqa: PLC0415 - the package may be missing
    except InvalidRequestError:
        return
    for name, path, size in cached_models():
        yield LocalModel(name, size, path)


def _ollama() -> Iterator[LocalModel]:
    for name in names():
        # A model whose download was cut off has no weights.
        with contextlib.suppress(FileNotFoundError, ModelFileError, InvalidRequestError):
            path = find(OLLAMA + name, lambda _: None)
            yield LocalModel(OLLAMA + name, path.stat().st_size, path)
