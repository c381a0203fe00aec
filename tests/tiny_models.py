"""The golden tiny models as files, as they are or with their metadata changed."""

import functools
import lzma
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from rust_source import ROOT

from gguf import GGUFReader, GGUFValueType, GGUFWriter

DATA = ROOT / "tests" / "data" / "arch"
# Every golden model of an architecture, in float weights.
ARCHITECTURES = sorted(path.name.removesuffix(".gguf.xz") for path in DATA.glob("*.gguf.xz"))
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


@functools.lru_cache(maxsize=4)
def _read(source: Path, _changed: int) -> GGUFReader:
    """A model's content, kept since the reader takes seconds for a vocabulary of 32,000 tokens."""
    return GGUFReader(source)


def rewritten(
    source: Path,
    target: Path,
    *,
    drop: Iterable[str] = (),
    replace: Mapping[str, int | str | list[int] | list[str]] | None = None,
    reshape: Mapping[str, tuple[int, ...]] | None = None,
    extra: Mapping[str, bool | int | float | str | bytes | list[float]] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    renamed: str | None = None,
) -> Path:
    """A copy of a model with keys dropped, replaced or added, and tensors dropped, added or cut to another shape (rows,
    columns). `renamed`: of this architecture, which is the prefix of its keys too."""
    reader = _read(source, source.stat().st_mtime_ns)
    architecture = str(reader.fields["general.architecture"].contents())
    name = renamed or architecture
    replace, reshape = dict(replace or {}), reshape or {}
    writer = GGUFWriter(target, str(replace.pop("general.architecture", name)))
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in drop:
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        value = replace.get(key, field.contents())
        writer.add_key_value(re.sub(f"^{re.escape(architecture)}\\.", f"{name}.", key), value, kind, sub_type=element)
    for key, value in (extra or {}).items():
        kinds = {
            bool: GGUFValueType.BOOL,
            int: GGUFValueType.UINT32,
            float: GGUFValueType.FLOAT32,
            str: GGUFValueType.STRING,
        }
        elements = {bytes: GGUFValueType.UINT8, list: GGUFValueType.FLOAT32}
        element = elements.get(type(value))
        kind = GGUFValueType.ARRAY if type(value) in elements else kinds[type(value)]
        writer.add_key_value(key, value, kind, sub_type=element)
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


def mixture_of_equals(
    target: Path,
    count: int,
    used: int,
    *,
    renamed: str | None = None,
    keys: Mapping[str, bool | int | float] | None = None,
    factors: Mapping[str, float] | None = None,
) -> Path:
    """`llama_tied` with its feed-forwards as `count` experts each, of which `used` are chosen. `keys`: more keys of the
    architecture; `factors`: on tensors, by the end of their names without `.weight`."""
    source = tiny_model("llama_tied", target.parent)
    tensors, drop = {}, []
    rng = np.random.default_rng(1)
    for tensor in GGUFReader(source).tensors:
        name, data = tensor.name.removesuffix(".weight"), np.array(tensor.data, np.float32)
        data *= np.float32(next((factor for end, factor in (factors or {}).items() if name.endswith(end)), 1))
        drop.append(tensor.name)
        if name.endswith(("ffn_gate", "ffn_up", "ffn_down")):
            tensors[f"{name}_exps.weight"] = np.stack([data] * count)
        else:
            tensors[tensor.name] = data
        if name.endswith("ffn_norm"):
            router = rng.standard_normal((count, data.shape[0]), dtype=np.float32)
            tensors[f"{name.removesuffix('norm')}gate_inp.weight"] = router
    extra = {"expert_count": count, "expert_used_count": used, **(keys or {})}
    named = {f"{renamed or 'llama'}.{key}": value for key, value in extra.items()}
    return rewritten(source, target, drop=drop, extra=named, tensors=tensors, renamed=renamed)


def bpe_model(path: Path) -> Path:
    """The metadata of a byte-level vocabulary alone."""
    writer = GGUFWriter(path, "llama")
    characters = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    writer.add_tokenizer_model("gpt2")
    characters.append("ab")
    writer.add_token_list([*characters, "<|end|>"])
    writer.add_token_types([1] * len(characters) + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(characters))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
