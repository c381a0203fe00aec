"""The golden tiny models as files, as they are or with their metadata changed."""

import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from rust_source import ROOT

from gguf import GGUFReader, GGUFValueType, GGUFWriter

DATA = ROOT / "tests" / "data" / "arch"
NAMES = ("llama3_ropescale", "llama_tied", "mistral", "qwen2", "qwen3")


def tiny_model(name: str, folder: Path) -> Path:
    """The model's file, unpacked into `folder`."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        path.write_bytes(lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes()))
    return path


def metadata(path: Path) -> dict[str, object]:
    """All keys of a file, as another implementation reads them."""
    return {key: field.contents() for key, field in GGUFReader(path).fields.items()}


def hyperparameter(path: Path, key: str) -> int:
    """`<architecture>.<key>` of a file."""
    values = metadata(path)
    return int(values[f"{values['general.architecture']}.{key}"])


def tensor_bytes(path: Path) -> int:
    return sum(int(tensor.n_bytes) for tensor in GGUFReader(path).tensors)


def rewritten(
    source: Path,
    target: Path,
    *,
    drop: Iterable[str] = (),
    replace: Mapping[str, int | str] | None = None,
    reshape: Mapping[str, tuple[int, ...]] | None = None,
    extra: Mapping[str, bool | int | float | str] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A copy of a model with keys dropped, replaced or added, and tensors dropped, added or cut to another shape (rows,
    columns)."""
    reader = GGUFReader(source)
    replace, reshape = dict(replace or {}), reshape or {}
    writer = GGUFWriter(target, str(replace.pop("general.architecture", metadata(source)["general.architecture"])))
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in drop:
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(key, replace.get(key, field.contents()), kind, sub_type=element)
    for key, value in (extra or {}).items():
        kinds = {
            bool: GGUFValueType.BOOL,
            int: GGUFValueType.UINT32,
            float: GGUFValueType.FLOAT32,
            str: GGUFValueType.STRING,
        }
        writer.add_key_value(key, value, kinds[type(value)])
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    for tensor in reader.tensors:
        if tensor.name in drop:
            continue
        data = tensor.data
        if tensor.name in reshape:
            data = np.ascontiguousarray(data[tuple(slice(n) for n in reshape[tensor.name])])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
