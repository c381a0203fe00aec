"""A model's file and the machine, each in a few words."""

import math
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rocmforge import __version__
from rocmforge._rocmforge import inspect_gguf
from rocmforge.display.terminal import printable
from rocmforge.reports import DoctorReport, FileReport

# The architecture of image encoders.
ENCODER = "clip"
# Parts of models that this version does not have, by the names of their tensors in files of llama.cpp's converters.
_PARTS = {
    "Kimi Delta Attention": r"\.ssm_f_a\.",
    "sparse attention with an indexer": r"\.indexer\.",
    "hyper-connections": r"\.hc_attn_",
    "RWKV's time mixing": r"\.time_mix_",
    "cross-attention of a decoder": r"\.cross_attn_",
}


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """The facts that a person asks of a file first."""

    name: str
    architecture: str
    tasks: tuple[str, ...]
    """Methods of `LLM` that the model serves; none for one that cannot be run."""
    missing: tuple[str, ...]
    """Parts of the model that this version does not have, each with a tensor of the file that shows it."""
    projector: str | None
    """The kind of an image encoder's file; `None` for a text model."""
    parameters: int
    tensor_bytes: int
    bytes_by_type: dict[str, int]
    """Bytes by tensor type, in descending order."""
    layers: int | None
    context_length: int | None
    embedding_length: int | None
    vocab_size: int | None
    bytes_per_token: int | None
    """Weights that a decode step reads for a single sequence; `None` where that depends on its token (experts)."""

    def line(self) -> str:
        """The summary in one line."""
        kind = next(iter(self.bytes_by_type), "no tensors")
        return f"{printable(self.name)}, {short(self.parameters)} parameters, {kind}, {size(self.tensor_bytes)}"

    def _serves(self) -> str:
        if self.projector is not None:
            return f"images, beside the file of its text model (image encoder {self.projector})"
        return ", ".join(self.tasks) or "nothing: this version does not run it"

    def rows(self) -> list[tuple[str, str]]:
        """The summary as a table, without what the file does not say."""
        total = max(self.tensor_bytes, 1)
        types = ", ".join(f"{kind} {100 * part / total:.0f} %" for kind, part in self.bytes_by_type.items())
        rows = [
            ("name", self.name),
            ("architecture", self.architecture),
            ("serves", self._serves()),
            ("not supported", ", ".join(self.missing) or None),
            ("parameters", short(self.parameters)),
            ("weights", size(self.tensor_bytes)),
            ("tensor types", types),
            ("layers", self.layers),
            ("context length", self.context_length),
            ("embedding length", self.embedding_length),
            ("vocabulary", self.vocab_size),
        ]
        return [(name, str(value)) for name, value in rows if value is not None]


def _missing(tensors: Iterable[str]) -> tuple[str, ...]:
    """The parts that this version does not have, as the names of a file's tensors show them."""
    names = list(tensors)
    found = ((part, next(filter(re.compile(names_of).search, names), None)) for part, names_of in _PARTS.items())
    return tuple(f"{part} ({printable(name)})" for part, name in found if name is not None)


def summarise(file: Path, report: FileReport) -> ModelSummary:
    """Summarises the report of `inspect_gguf`."""
    metadata, tensors = report["metadata"], report["tensors"]
    architecture = str(metadata.get("general.architecture", "unknown"))
    by_type: dict[str, int] = {}
    for tensor in tensors:
        by_type[tensor["type"]] = by_type.get(tensor["type"], 0) + tensor["bytes"]
    total = sum(by_type.values())
    sizes = {tensor["name"]: tensor["bytes"] for tensor in tensors}
    # A step reads one row of a table of embeddings, unless the table is the output's matrix as well.
    tables = ["per_layer_token_embd.weight", *(["token_embd.weight"] if "output.weight" in sizes else [])]
    rows_only = sum(sizes.get(table, 0) for table in tables)
    has_experts = bool(metadata.get(f"{architecture}.expert_count"))
    tokens = metadata.get("tokenizer.ggml.tokens")
    is_encoder = architecture == ENCODER
    prefix = f"{ENCODER}.vision" if is_encoder else architecture

    # Files that may also have an encoder of audio have the second key.
    of_projector = (f"{ENCODER}.projector_type", f"{ENCODER}.vision.projector_type")
    kinds = (str(metadata[key]) for key in of_projector if key in metadata)

    def count(key: str) -> int | None:
        """A file that is damaged may have anything under its keys."""
        value = metadata.get(f"{prefix}.{key}")
        return value if isinstance(value, int) else None

    return ModelSummary(
        name=str(metadata.get("general.name", file.stem)),
        architecture=architecture,
        tasks=tuple(report["tasks"]),
        missing=() if report["tasks"] or is_encoder else _missing(sizes),
        projector=next(kinds, "of an unknown kind") if is_encoder else None,
        parameters=sum(math.prod(tensor["shape"]) for tensor in tensors),
        tensor_bytes=total,
        bytes_by_type=dict(sorted(by_type.items(), key=lambda item: -item[1])),
        layers=count("block_count"),
        context_length=count("context_length"),
        embedding_length=count("embedding_length"),
        vocab_size=len(tokens) if isinstance(tokens, list) else None,
        bytes_per_token=None if has_experts else total - rows_only,
    )


def model_summary(file: Path) -> ModelSummary:
    """Summarises a file."""
    return summarise(file, inspect_gguf(file))


def machine_line() -> str:
    """The processor, its cores, the memory, the system, and this version."""
    cpu = _first(Path("/proc/cpuinfo"), r"model name\s*: (.*)") or platform.machine()
    memory = _first(Path("/proc/meminfo"), r"MemTotal:\s*(\d+) kB")
    parts = [cpu, f"{os.cpu_count()} CPUs"]
    if memory is not None:
        parts.append(f"{size(1024 * int(memory))} of memory")
    return ", ".join([*parts, f"{platform.system()} {platform.release()}", f"rocmforge {__version__}"])


def gpu_lines(report: DoctorReport, *, taken: str) -> list[str]:
    """System, drivers and GPUs in a report of `_rocmforge.doctor`; `taken` is said of the GPU that is used."""
    lines = list(report["system"])
    for driver in report["gpu_drivers"]:
        library = driver["library"] or f"none: {driver['problem']}"
        lines.append(f"driver for {driver['platform']}: {library}")
    for gpu in report["gpus"]:
        kind = ", integrated" if gpu["integrated"] else ""
        note = f", {taken}" if gpu["taken"] else ""
        facts = f"{gpu['arch']}, {size(gpu['memory'])}{kind}"
        lines.append(f"GPU {gpu['device']} of {gpu['platform']}: {gpu['name']} ({facts}){note}")
    return lines


def _first(file: Path, pattern: str) -> str | None:
    found = re.search(pattern, file.read_text(encoding="utf-8")) if file.exists() else None
    return None if found is None else found[1]


def short(number: int) -> str:
    """Writes a number in short: 134.5M for 134515008."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.1f}{name}"
    return str(number)


def size(num_bytes: int) -> str:
    """Writes a number of bytes in short: 97.8 MB, 4.37 GB."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
