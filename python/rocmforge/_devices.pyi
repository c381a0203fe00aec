"""Reports and tests of devices: functions of the compiled half, which `_rocmforge` has."""

from collections.abc import Callable

from rocmforge.reports import BandwidthReport, CaseGroup, DoctorReport, LaunchReport, LibraryReport

def doctor(device: str = "auto", progress: Callable[[int, int], None] | None = None) -> DoctorReport:
    """Reports the devices and kernels of this machine.

    Loads every kernel onto the GPU that `device` names, if there is one, and compiles those without code.

    Args:
        device: As for `LLM`. With the CPU no driver is opened.
        progress: Called with the units of kernels that are done, and all.

    Raises:
        InvalidRequestError: There can be no such device, or a variable of the environment cannot be read.
    """

def device_cases(device: str, *, quick: bool = False, watch: Callable[[str], object] | None = None) -> list[CaseGroup]:
    """Runs every op on every tensor type on a device and compares the results with references in double precision.

    Args:
        device: As for `LLM`.
        quick: Each third of the cases, and none that takes long.
        watch: Called with the name of each case before it runs. What it raises ends the test.

    Raises:
        DeviceError: There is no such device, or it fails.
    """

def device_repeats(
    device: str, *, repetitions: int, quick: bool = False, watch: Callable[[str], object] | None = None
) -> list[CaseGroup]:
    """Computes what several blocks of a GPU share again and again; it has to be the same to the last bit.

    Arguments, result and errors are those of `device_cases`.
    """

def device_matrix_library(
    device: str, *, quick: bool = False, watch: Callable[[str], object] | None = None
) -> LibraryReport:
    """Tries the vendor's matrix library on shapes of common models, each in a process of its own.

    Raises:
        DeviceError: There is no GPU.
    """

def device_bandwidth(device: str, *, num_bytes: int, host_bytes: int) -> BandwidthReport:
    """Bytes per second of a GPU, the best of several passes.

    Args:
        device: As for `LLM`.
        num_bytes: Device memory to read and to copy; no more than a quarter of what is free is used.
        host_bytes: Of that, what is copied to and from page-locked memory of the host.

    Raises:
        DeviceError: There is no GPU, or it fails.
        OutOfMemoryError: Its memory is full.
    """

def device_launches(device: str, *, count: int) -> LaunchReport:
    """Seconds that empty kernels take on a GPU.

    Args:
        device: As for `LLM`.
        count: Launches that are queued one after the other.

    Raises:
        DeviceError: There is no GPU, or it fails.
    """

def embedded_targets() -> list[str]:
    """The targets of AMD GPUs that this build carries kernels for."""
