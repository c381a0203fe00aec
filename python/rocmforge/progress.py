"""Progress on a terminal: loading and long generation. Nothing is shown, or imported, anywhere else."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeAlias

Report: TypeAlias = Callable[[int, int], None]
"""Called with what is done and with the whole."""

on_load: ContextVar[Report | None] = ContextVar("on_load", default=None)
"""Told of every load that starts in its context."""

# What takes less shows no bar: it would only flicker.
DELAY_SECONDS = 0.5


def is_terminal() -> bool:
    """Whether a person watches stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def bar(description: str, *, unit: str, enabled: bool = True) -> Iterator[Callable[[int, int, str], None]]:
    """Gives a function `(done, total, note)` that draws a bar on stderr, or does nothing without a terminal."""
    if not (enabled and is_terminal()):
        yield lambda _done, _total, _note: None
        return
    # Only a terminal needs rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit + " {task.fields[note]}"),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(description, total=None, note="")
    started = time.monotonic()

    def draw(done: int, total: int, note: str) -> None:
        if not progress.live.is_started and time.monotonic() - started > DELAY_SECONDS:
            progress.start()
        progress.update(task, completed=done, total=total, note=note)

    try:
        yield draw
    finally:
        progress.stop()


@contextlib.contextmanager
def load_bar(*, enabled: bool = True) -> Iterator[None]:
    """Shows a bar for every load inside the block."""
    with bar("Loading", unit="MB", enabled=enabled) as draw:
        token = on_load.set(lambda done, total: draw(done // 1_000_000, total // 1_000_000, ""))
        try:
            yield
        finally:
            on_load.reset(token)
