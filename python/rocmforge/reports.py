"""What `rocmforge.diagnose` says of files, devices and kernels. The command line prints the same fields as JSON."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a file."""

    name: str
    shape: list[int]
    """The fastest dimension first."""
    type: str
    """Its block format, for instance `Q4_K`."""
    bytes: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a file holds."""

    version: int
    """Of the GGUF format."""
    metadata: dict[str, Any]
    """By key: numbers, texts, truth values, and lists of one of these."""
    tensors: list[TensorInfo]
    """In the file's order; those of all files, for a split model."""


@dataclass(frozen=True, slots=True)
class ProblemReport:
    """What is wrong with a file."""

    error: str
    """The name of the exception's class that a load would raise."""
    message: str


@dataclass(frozen=True, slots=True)
class StageReport:
    """A stage of the check of a file."""

    stage: str
    """`file`, `architecture`, `tokenizer`, `chat template`, `sampling` or `values`."""
    summary: str
    """What was found, in a line; empty where it failed."""
    warnings: list[str]
    """What is doubtful and stops no load."""
    problems: list[ProblemReport]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Whether a file can be used."""

    stages: list[StageReport]
    """In their order; a file that cannot be opened has the first one alone."""

    @property
    def valid(self) -> bool:
        """Whether no stage found a problem."""
        return not any(stage.problems for stage in self.stages)


@dataclass(frozen=True, slots=True)
class DriverReport:
    """The library of a platform's driver, or why there is none to use."""

    platform: str
    """`amd` or `nvidia`."""
    library: str | None
    """Its path, where it can be used."""
    problem: str | None
    """Why it cannot."""


@dataclass(frozen=True, slots=True)
class GpuReport:
    """A GPU that a driver lists."""

    device: str
    """The name by which `LLM` takes it, for instance `gpu:1`."""
    platform: str
    """`amd` or `nvidia`."""
    name: str
    """As its driver calls it."""
    arch: str
    """What its code is compiled for, for instance `gfx1100` or `sm_90`."""
    integrated: bool
    """Whether it is part of a processor."""
    taken: bool
    """Whether it is the one that was asked for."""


@dataclass(frozen=True, slots=True)
class GpuKernelReport:
    """What serves an op on weights of a type, or on activations, on the GPU."""

    tensor_type: str | None
    """That of the weights in the file; `None` for activations and for stacks of two types."""
    stored_as: str | None
    """That of the weights on the device: types without kernels of their own are dequantised at load."""
    op: str
    kernels: list[str]
    """By name; one for each number of rows or width that has a kernel of its own."""
    unit: str
    """Of compilation: the kernels that are compiled and loaded together."""
    matrix_unit: str | None
    """The matrix unit that the code uses, for an op on matrix units."""
    code: str | None
    """How the code came about: embedded, found in the cache, or compiled."""
    compile_seconds: float | None
    """How long that took, where it was compiled for this report."""
    problem: str | None
    """Why it cannot be used."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The CPU, or a GPU."""

    name: str
    """`cpu` or `gpu`."""
    detail: str
    """What it is, or why it is not usable."""


@dataclass(frozen=True, slots=True)
class UsableGpuReport(DeviceReport):
    """A GPU that can be used."""

    kernels: list[GpuKernelReport]
    matrix_library: str
    """The vendor's, and what it is used for, or why it is not."""
    decode_steps: str
    """Whether they are recorded, or why not."""


@dataclass(frozen=True, slots=True)
class CpuKernelReport:
    """What serves an op on weights of a type, or on activations, on the CPU."""

    tensor_type: str
    op: str
    kernel: str
    """The instruction set in use, or `scalar-dequantise` for a type without a kernel of its own."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What a machine offers."""

    architecture: str
    """Of the processor, as the build names it: `x86_64` or `aarch64`."""
    embedded_targets: list[str]
    """The AMD GPUs that this build carries kernels for."""
    num_cpus: int
    """Threads that the system lets this process run at once."""
    device: str
    """As it was asked for."""
    takes: str
    """What that comes to: `cpu`, `gpu`, or `none` where a load would be an error."""
    gpu_drivers: list[DriverReport]
    gpus: list[GpuReport]
    """Of all drivers that can be used."""
    devices: list[DeviceReport]
    """The CPU, then the GPU."""
    cpu_features: dict[str, bool]
    """Instruction sets that a kernel could use, and whether the processor has them."""
    kernels: list[CpuKernelReport]
    """Of the CPU; those of the GPU are in its device's report."""


@dataclass(frozen=True, slots=True)
class CaseGroup:
    """Cases of one op and tensor type on a device."""

    name: str
    cases: int
    """Results that were compared, each of many numbers."""
    numbers: int
    """That were compared."""
    worst: float
    """The largest error as a share of the tolerance; infinite for what is no number."""
    wrong: int
    """Of the cases."""
    problems: list[str]
    """Texts of the first wrong cases."""


@dataclass(frozen=True, slots=True)
class TriedShape:
    """What the vendor's matrix library made of a shape."""

    shape: str
    products: int
    """How many of that shape were tried."""
    problem: str | None
    """What is wrong with them."""


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """The vendor's matrix library."""

    not_used: str | None
    """Why it is not."""
    file: str | None
    """Its path, where it is used."""
    tried: list[TriedShape]


@dataclass(frozen=True, slots=True)
class BandwidthReport:
    """Bytes per second of a GPU's copies and reads, and the bytes of what was copied."""

    device_bytes: int
    """Of the buffers on the device."""
    host_bytes: int
    """Of the page-locked buffer on the host."""
    to_device: float
    to_host: float
    on_device: float
    """A copy; bytes read and written both count."""
    read: float
    """By a kernel that does nothing else."""


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """Seconds that empty kernels take on a GPU."""

    launches: int
    """How many were queued one after the other."""
    eager: float
    """From one launch to the next."""
    call: float
    """Of that, the host's."""
    graph_node: float
    """What one more kernel adds to a recorded graph."""
    graph: float
    """Launching a graph of one kernel."""
