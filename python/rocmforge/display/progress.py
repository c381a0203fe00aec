"""Progress bars for loads and long generations, on a terminal or in a notebook. Elsewhere nothing is imported."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from rocmforge.display.terminal import printable

Report: TypeAlias = Callable[[int, int], None]
"""Called with the amount done and the total."""

# Shorter work shows no bar, which would only flicker.
DELAY_SECONDS = 0.5


def is_terminal() -> bool:
    """True if stderr is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_notebook() -> bool:
    """True if the code runs in a Jupyter notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


@contextlib.contextmanager
def bar(description: str, *, unit: str, enabled: bool = True) -> Iterator[Callable[[int, int, str], None]]:
    """Yields a function `(done, total, note)` that draws a bar; without terminal and notebook, it does nothing."""
    if not (enabled and (is_terminal() or is_notebook())):
        yield lambda _done, _total, _note: None
        return
    started = time.time()
    shown: Any = None

    def draw(done: int, total: int, note: str) -> None:
        nonlocal shown
        if shown is None:
            if time.time() - started < DELAY_SECONDS:
                return
            shown = _new(description, unit, total)
            shown.start_t = started
        shown.set_postfix_str(note, refresh=False)
        shown.update(done - shown.n)

    try:
        yield draw
    finally:
        if shown is not None:
            shown.close()


@contextlib.contextmanager
def byte_bar(description: str, *, enabled: bool = True, report: Report | None = None) -> Iterator[Report]:
    """Yields a report for work on bytes, which draws a bar and calls `report`."""
    with bar(description, unit="MB", enabled=enabled) as draw:

        def both(done: int, total: int) -> None:
            draw(done // 1_000_000, total // 1_000_000, "")
            if report is not None:
                report(done, total)

        yield both


def _new(description: str, unit: str, total: int) -> Any:
    # Only work that takes this long needs the import.
    from tqdm.auto import tqdm  # noqa: PLC0415

    class Bar(tqdm):  # type: ignore[misc]
        """A bar without tqdm's monitor thread, which would outlive it.

        It is a separate class, so that the program's other bars keep the thread.
        """

        monitor_interval = 0

    # `miniters=0`: a note may change while the count does not.
    return Bar(
        desc=printable(description),
        total=total,
        unit=unit,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
        miniters=0,
    )
