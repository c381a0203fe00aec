"""A model's file, as Ollama describes one."""

import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from rocmforge._rocmforge import inspect_gguf

# Bytes of the beginning and of the end of a file that tell files apart.
DIGESTED = 1 << 20

UNITS = (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 2))


def timestamp(seconds: float) -> str:
    """A time since the Unix epoch as RFC 3339 writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file's description."""

    size: int
    """Bytes of all tensors."""
    digest: str
    """Hexadecimal digits that differ from another file's; not the SHA-256 of all of it, which takes long."""
    modified_at: str
    details: dict[str, Any]
    info: dict[str, Any]
    """The metadata, without lists."""
    tasks: tuple[str, ...]
    """Methods of `LLM` that the model serves."""


@lru_cache(maxsize=16)
def model_file(path: Path) -> ModelFile:
    """Describes a file, which is read once."""
    report = inspect_gguf(path)
    tensors = report["tensors"]
    bytes_of: Counter[str] = Counter()
    for tensor in tensors:
        bytes_of[tensor["type"]] += tensor["bytes"]
    num_parameters = sum(math.prod(tensor["shape"]) for tensor in tensors)
    family = str(report["metadata"].get("general.architecture", ""))
    return ModelFile(
        size=bytes_of.total(),
        digest=_digest(path),
        modified_at=timestamp(path.stat().st_mtime),
        details={
            "parent_model": "",
            "format": "gguf",
            "family": family,
            "families": [family],
            "parameter_size": _short(num_parameters),
            # The type that most of the bytes have.
            "quantization_level": max(bytes_of, key=bytes_of.__getitem__, default=""),
        },
        info={"general.parameter_count": num_parameters} | plain_metadata(report["metadata"], lists=False),
        tasks=tuple(report["tasks"]),
    )


def awaited_file(name: str, created: float) -> ModelFile:
    """Describes a model that is downloaded for its first request, without any file yet."""
    nothing = {"parent_model": "", "format": "gguf", "family": "", "families": [], "parameter_size": ""}
    return ModelFile(
        size=0,
        digest=hashlib.sha256(name.encode()).hexdigest(),
        modified_at=timestamp(created),
        details=nothing | {"quantization_level": ""},
        info={},
        tasks=(),
    )


def plain_metadata(metadata: dict[str, Any], *, lists: bool) -> dict[str, Any]:
    """The metadata as JSON can say it: `null` for numbers that are none, and for lists unless they are asked for."""
    return {key: _plain(value, lists=lists) for key, value in metadata.items()}


def _plain(value: Any, *, lists: bool) -> Any:
    if isinstance(value, list):
        return [_plain(item, lists=True) for item in value] if lists else None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(DIGESTED)
        file.seek(max(0, size - DIGESTED))
        return hashlib.sha256(b"%d:" % size + start + file.read()).hexdigest()


def _short(number: int) -> str:
    for unit, size, digits in UNITS:
        if number >= size:
            return f"{number / size:.{digits}f}{unit}"
    return str(number)
