"""Which of a repository's files is meant: a model is one file or a split one, by the type of its weights."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rocmforge.errors import OutOfMemoryError

# Ordered by size and loss of quality: first the usual types of four bits, then more bits, then fewer.
PREFERRED = (
    "Q4_K_M",
    "Q4_K_S",
    "MXFP4",
    "Q4_0",
    "Q4_1",
    "IQ4_NL",
    "IQ4_XS",
    "NVFP4",
    "Q5_K_M",
    "Q5_K_S",
    "Q6_K",
    "Q8_0",
    "BF16",
    "F16",
    "F32",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_S",
    "Q2_K",
)
# In addition to the weights, the KV cache and the workspace need room: a tenth, and one GiB.
ROOM_SHARE = 1.1
ROOM_BYTES = 1 << 30
# A carve-out of a processor's own GPU is smaller; such a GPU uses the machine's memory.
LEAST_CARD_BYTES = 4 << 30

QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F16|F32|MXFP4|NVFP4)(?:_MOE)?)$", re.IGNORECASE
)
PART = re.compile(r"-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository."""

    path: str
    size: int
    sha256: str | None
    """`None` for small files, which the hub does not keep apart."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A model in one type of weights: all of its parts, in order."""

    name: str
    """The file's name without the part's number and `.gguf`."""
    quant: str | None
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(file.size for file in self.files)

    def label(self) -> str:
        """The word that a user names it by."""
        return self.quant or self.name


# Tensor types of image encoders, the preferred one first. Quantised encoders lose more than they save.
ENCODER_TYPES = ("F16", "BF16", "F32")


def is_encoder(name: str) -> bool:
    """True if a file is an image encoder (a projector), by the converters' names."""
    return "mmproj" in name.lower()


def encoder(files: Iterable[RemoteFile]) -> RemoteFile | None:
    """Returns the image encoder of a repository; `None` if there is none."""

    def rank(file: RemoteFile) -> tuple[int, str]:
        quant = QUANT.search(PurePosixPath(file.path).stem)
        name = quant[1].upper() if quant else ""
        return ENCODER_TYPES.index(name) if name in ENCODER_TYPES else len(ENCODER_TYPES), file.path

    found = [
        file for file in files if file.path.lower().endswith(".gguf") and is_encoder(PurePosixPath(file.path).name)
    ]
    return min(found, key=rank, default=None)


def variants(files: Iterable[RemoteFile]) -> list[Variant]:
    """Groups the GGUF files of a repository. Split models that lack a part are left out, as image encoders are."""
    parts: dict[str, list[RemoteFile]] = {}
    expected: dict[str, int] = {}
    for file in sorted(files, key=lambda file: file.path):
        path = PurePosixPath(file.path)
        if path.suffix.lower() != ".gguf" or is_encoder(path.name) or path.name.startswith("imatrix"):
            continue
        part = PART.search(path.stem)
        stem = path.stem[: part.start()] if part else path.stem
        key = str(path.parent / stem)
        parts.setdefault(key, []).append(file)
        expected[key] = int(part[2]) if part else 1
    found = []
    for key, group in parts.items():
        if len(group) == expected[key]:
            name = PurePosixPath(key).name
            quant = QUANT.search(name)
            found.append(Variant(name, quant[1].upper() if quant else None, tuple(group)))
    return found


def named(found: Sequence[Variant], wanted: str) -> list[Variant]:
    """The variants that a user's word means: a type of weights, or the name of a file."""
    word = PART.sub("", wanted.lower().removesuffix(".gguf"))
    return [one for one in found if word in ((one.quant or "").lower(), one.name.lower())]


def preferred(found: Sequence[Variant]) -> list[Variant]:
    """Returns the variants that may be chosen without a type in the name, the best first."""
    if len(found) == 1:
        return list(found)
    known = [one for one in found if one.quant in PREFERRED]
    return sorted(known, key=lambda one: PREFERRED.index(one.quant or ""))


def fitting(candidates: Sequence[Variant], free: int, memory: str) -> Variant:
    """The first candidate that fits into `free` bytes with room for the KV cache.

    Raises:
        OutOfMemoryError: None does.
    """
    for one in candidates:
        if one.size * ROOM_SHARE + ROOM_BYTES <= free:
            return one
    sizes = ", ".join(f"{one.label()} ({one.size / 1e9:.2f} GB)" for one in candidates)
    raise OutOfMemoryError(
        f"model: got {sizes}, none of which fits with its KV cache into {free / 1e9:.2f} GB ({memory}); "
        "add :QUANT to the name to take one all the same"
    )


def free_memory() -> tuple[int, str]:
    """Bytes that a model may take, and where: the largest card that AMD's driver lists, else the machine's memory."""
    cards = []
    for total in Path("/sys/class/drm").glob("card*/device/mem_info_vram_total"):
        size = int(total.read_text(encoding="ascii"))
        if size >= LEAST_CARD_BYTES:
            used = int(total.with_name("mem_info_vram_used").read_text(encoding="ascii"))
            cards.append(size - used)
    if cards:
        return max(cards), "free memory of the GPU"
    available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    if available is None:
        raise OSError("/proc/meminfo: there is no MemAvailable, expected the free memory in kB")
    return 1024 * int(available[1]), "free memory of the machine"
