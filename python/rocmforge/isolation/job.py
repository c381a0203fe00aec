"""The first messages between parent and child."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmforge.errors import InvalidRequestError
from rocmforge.settings import EngineSettings
from rocmforge.stats import MemoryUsage, ResolvedConfig, Stats

# Exit status of a child whose engine has died by itself: its device is lost, as a rule.
EXIT_DEAD = 70


@dataclass(frozen=True, slots=True)
class Job:
    """The model for the child, and its settings."""

    model: Path
    settings: EngineSettings
    only_on_gpu: bool
    """True to load nothing where the device would be the CPU."""
    log_level: int
    max_kv_events: int | None = None
    """Most events of the prefix cache that wait to be taken, where they are recorded."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The child's description of its engine: all that does not change while it lives."""

    config: ResolvedConfig
    sampling_defaults: dict[str, Any]
    description: str
    memory: MemoryUsage
    stats: Stats
    """The statistics at the beginning."""
    mmproj: str | None
    """The file of the image encoder, if the model has one."""
    no_tokenizer: InvalidRequestError | None
    """The error of a file without a tokenizer; otherwise `None`."""
