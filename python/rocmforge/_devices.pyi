"""Reports and tests of devices: functions of the compiled module `_rocmforge`."""

from collections.abc import Callable

from rocmforge.reports import BandwidthReport, CaseGroup, DoctorReport, LaunchReport, LibraryReport, TuningReport

def doctor(device: str = "auto", progress: Callable[[int, int], None] | None = None) -> DoctorReport:
    """Reports the devices and kernels of this machine.

    Loads every kernel onto the GPU that `device` names, if there is one, and compiles those without code.

    Args:
        device: As for `LLM`. With the CPU no driver is opened.
        progress: Called with the number of kernel units done and the total.

    Raises:
        InvalidRequestError: The device name is unknown, or an environment variable is invalid.
    """

def device_cases(
    device: str,
    *,
    quick: bool = False,
    watch: Callable[[str], object] | None = None,
    done: Callable[[CaseGroup], object] | None = None,
) -> list[CaseGroup]:
    """Runs every operation on every tensor type on a device, and compares with references in double precision.

    Args:
        device: As for `LLM`.
        quick: True to run every third case, without the slow ones.
        watch: Called with the name of each case before it runs. An exception that it raises ends the test.
        done: Called with each group after its last case. An exception that it raises is raised at the end.

    Raises:
        DeviceError: There is no such device, or it fails.
    """

def device_repeats(
    device: str,
    *,
    repetitions: int,
    quick: bool = False,
    watch: Callable[[str], object] | None = None,
    done: Callable[[CaseGroup], object] | None = None,
) -> list[CaseGroup]:
    """Repeats computations that several blocks of a GPU share; the results must be the same to the last bit.

    Arguments, result and errors are those of `device_cases`.
    """

def device_matrix_library(
    device: str, *, quick: bool = False, watch: Callable[[str], object] | None = None
) -> LibraryReport:
    """Tries the vendor's matrix library on shapes of common models, each in a separate process.

    Raises:
        DeviceError: There is no GPU.
    """

def device_repeated_graph(device: str) -> str | None:
    """Repeats a captured graph with other numbers, also if decode steps use none by default.

    Returns:
        The numbers that were wrong; `None` if all were right.

    Raises:
        DeviceError: There is no GPU, or it fails.
    """

def device_tuning(device: str) -> TuningReport:
    """The numbers by which kernels are launched on a GPU.

    Raises:
        DeviceError: There is no GPU.
    """

def device_bandwidth(device: str, *, num_bytes: int, host_bytes: int) -> BandwidthReport:
    """Returns the memory bandwidth of a GPU in bytes per second, the best of several passes.

    Args:
        device: As for `LLM`.
        num_bytes: Device memory to read and to copy, limited to a quarter of the free memory.
        host_bytes: The part that is copied to and from page-locked memory of the host.

    Raises:
        DeviceError: There is no GPU, or it fails.
        OutOfMemoryError: Its memory is full.
    """

def device_launches(device: str, *, count: int) -> LaunchReport:
    """Returns the time of empty kernels on a GPU, in seconds.

    Args:
        device: As for `LLM`.
        count: Number of queued launches.

    Raises:
        DeviceError: There is no GPU, or it fails.
    """

def embedded_targets() -> list[str]:
    """The targets of AMD GPUs that this build carries kernels for."""
