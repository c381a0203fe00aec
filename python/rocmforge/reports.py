"""Reports on files, devices and kernels: typed dictionaries, which the command line prints as JSON."""

from typing import Any, NotRequired, TypedDict


class TensorReport(TypedDict):
    """A tensor of a file."""

    name: str
    shape: list[int]
    """Sizes of the dimensions, the fastest one first."""
    type: str
    bytes: int


class SupportReport(TypedDict):
    """Why a file does not run on a device of each kind, whatever memory that has; `None` where it runs."""

    cpu: str | None
    gpu: str | None


class FileReport(TypedDict):
    """The contents of a file."""

    version: int
    """Version of the format."""
    tasks: list[str]
    """Methods of `LLM` that a model of this file serves: `generate`, `embed`, `score`; none if it cannot be run."""
    metadata: dict[str, Any]
    tensors: list[TensorReport]


class ProblemReport(TypedDict):
    """A fault of a file."""

    error: str
    """The name of the exception's class."""
    message: str


class StageReport(TypedDict):
    """A stage of the check of a file."""

    stage: str
    summary: str
    warnings: list[str]
    problems: list[ProblemReport]


class DriverReport(TypedDict):
    """The library of a platform's driver, or why there is none to use."""

    platform: str
    library: str | None
    problem: str | None


class GpuReport(TypedDict):
    """A GPU that a driver lists."""

    device: str
    """The name by which `LLM` takes it."""
    platform: str
    name: str
    arch: str
    memory: int
    """Bytes of its memory."""
    integrated: bool
    """True if the GPU is part of a processor."""
    taken: bool
    """True if it is the requested device."""


class GpuKernelReport(TypedDict):
    """The GPU's kernels for an op on weights of a type, or on activations."""

    tensor_type: str | None
    op: str
    kernels: list[str]
    unit: str
    matrix_unit: str | None
    code: str | None
    """The way in which the code came about."""
    compile_seconds: float | None
    problem: str | None
    """The reason for which it cannot be used."""


class DeviceReport(TypedDict):
    """A device; only a usable GPU has the fields that are not required."""

    name: str
    detail: str
    tuned_as: NotRequired[str]
    """The family of GPUs whose numbers kernels are launched by, and whether they were measured."""
    kernels: NotRequired[list[GpuKernelReport]]
    matrix_library: NotRequired[str]
    decode_steps: NotRequired[str]


class CpuKernelReport(TypedDict):
    """The CPU's kernel for an op on weights of a type, or on activations."""

    tensor_type: str
    op: str
    kernel: str


class DoctorReport(TypedDict):
    """The devices and kernels of a machine."""

    architecture: str
    embedded_targets: list[str]
    num_cpus: int
    device: str
    """The device's name as the user gave it."""
    takes: str
    """The device for this name on this machine; `none` if the name is an error here."""
    system: list[str]
    """Facts that decide if AMD's driver finds a GPU: kernel, device files, groups, variables. One line for each."""
    gpu_drivers: list[DriverReport]
    gpus: list[GpuReport]
    devices: list[DeviceReport]
    """The CPU, then the GPU."""
    cpu_features: dict[str, bool]
    kernels: list[CpuKernelReport]


class CaseGroup(TypedDict):
    """Cases of one op and tensor type on a device."""

    name: str
    cases: int
    numbers: int
    """Numbers that were compared."""
    worst: float
    """The largest error as a share of the tolerance; infinite for NaN."""
    wrong: int
    problems: list[str]
    """Texts of the first wrong cases."""


class TriedShape(TypedDict):
    """The trial of a shape with the vendor's matrix library."""

    shape: str
    products: int
    problem: str | None


class LibraryReport(TypedDict):
    """The vendor's matrix library."""

    not_used: str | None
    """The reason for which it is not used."""
    file: str | None
    tried: list[TriedShape]


class TunedNumber(TypedDict):
    """A number by which kernels are launched on a GPU."""

    name: str
    value: int
    candidates: list[int]
    """Values that are worth a try."""


class TuningReport(TypedDict):
    """A GPU, and the numbers by which kernels are launched on it."""

    device: str
    """Its name in messages."""
    tuned_as: str
    """The family whose numbers they are, and whether they were measured."""
    numbers: list[TunedNumber]


class BandwidthReport(TypedDict):
    """Bytes per second of a GPU's copies and reads, and the bytes of what was copied."""

    device_bytes: int
    host_bytes: int
    to_device: float
    to_host: float
    on_device: float
    """A copy; bytes read and written both count."""
    read: float
    """Reads by a kernel that does nothing else."""


class LaunchReport(TypedDict):
    """Seconds that empty kernels take on a GPU."""

    launches: int
    eager: float
    """Time from one launch to the next."""
    call: float
    """The host's share of it: the call itself."""
    graph_node: float
    """Time that one more kernel adds to a captured graph."""
    graph: float
    """Time of launching a graph of one kernel."""
