"""The input of a part of the device test, and its result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmforge.reports import CaseGroup

OK = "ok"
FAILED = "FAILED"
LEFT_OUT = "left out"
# `describe` and `doctor` begin with this where they speak of a device on which no decode step is captured.
NOT_CAPTURED = "decode steps: op by op"
KERNELS = "kernels of a decode step"


@dataclass(frozen=True, slots=True)
class Job:
    """The input of a part: the device, and the means to test it."""

    device: str
    """A name that `LLM` takes."""
    on_gpu: bool
    quick: bool
    folder: Path
    """A folder for files; it is removed afterwards."""
    watch: Callable[[str], None]
    """Called with the next case, so that a crash can name it."""
    done: Callable[[CaseGroup], None]
    """Called with each group of cases as it ends; the report keeps these if the process dies."""
    earlier: dict[str, dict[str, Any]]
    """Figures of the parts before, by their names."""


@dataclass(slots=True)
class Outcome:
    """The result of a part."""

    verdict: str
    """`ok`, `FAILED` or `left out`."""
    summary: str
    """The result in one line."""
    details: list[str] = field(default_factory=list)
    """Further lines."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Figures for `--json`."""

    @classmethod
    def judged(cls, is_right: bool, summary: str, **rest: Any) -> "Outcome":
        """`ok` or `FAILED`."""
        return cls(OK if is_right else FAILED, summary, **rest)
