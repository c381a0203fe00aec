"""The parts of the test, in their order."""

from collections.abc import Callable
from dataclasses import dataclass

from rocmforge.cli.device_test import checks, graphs, machine, sequences, speeds, tune
from rocmforge.cli.device_test.outcome import Job, Outcome


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the test, for one matter."""

    title: str
    run: Callable[[Job], Outcome]
    """Runs the part; called in a separate process."""
    without_gpu: str | None
    """The reason for which it is left out where there is no GPU; `None` for a part that runs on a CPU, too."""
    seconds: float
    """The time limit: about ten times the time of the part when every kernel must be compiled first."""


PARTS = {
    "devices": Part("devices and drivers", machine.devices, "the CPU is tested", 900),
    "kernels": Part("kernels against references", checks.kernels, None, 900),
    "repeats": Part("sums shared by blocks", checks.repeats, "the CPU adds up in one order", 600),
    "graphs": Part("graph capture", graphs.graphs, "the CPU captures no graphs", 900),
    "library": Part("matrix library", checks.matrix_library, "the CPU uses none", 1200),
    "sequences": Part("many requests at once", sequences.sequences, None, 600),
    "bandwidth": Part("memory", speeds.bandwidth, None, 300),
    "launches": Part("launches", speeds.launches, "nothing is launched on a CPU", 300),
    "speed": Part("speed of a model", speeds.speed, None, 600),
}

TUNE = "tune"
# Everything that a process is started for.
JOBS = PARTS | {TUNE: Part("numbers of launches", tune.tune, "a CPU has none", 900)}
