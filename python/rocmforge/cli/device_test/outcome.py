"""What a part is given, and what it finds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OK = "ok"
FAILED = "FAILED"
LEFT_OUT = "left out"
# How `describe` and `doctor` begin what they say of a device on which no decode step is recorded.
NOT_RECORDED = "decode steps: op by op"


@dataclass(frozen=True, slots=True)
class Job:
    """What a part is to test, and with what."""

    device: str
    """A name that `LLM` takes."""
    on_gpu: bool
    quick: bool
    folder: Path
    """For files, which are removed afterwards."""
    watch: Callable[[str], None]
    """To be told of what is about to run: what is named when the process dies of it."""
    earlier: dict[str, dict[str, Any]]
    """Figures of the parts before, by their names."""


@dataclass(slots=True)
class Outcome:
    """What a part finds."""

    verdict: str
    """`ok`, `FAILED` or `left out`."""
    summary: str
    """In a line."""
    details: list[str] = field(default_factory=list)
    """Further lines."""
    figures: dict[str, Any] = field(default_factory=dict)
    """For `--json`."""

    @classmethod
    def judged(cls, is_right: bool, summary: str, **rest: Any) -> "Outcome":
        """`ok` or `FAILED`."""
        return cls(OK if is_right else FAILED, summary, **rest)
