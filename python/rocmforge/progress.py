"""Progress of loading and of long generation, on a terminal or in a notebook; elsewhere nothing is imported."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Report: TypeAlias = Callable[[int, int], None]
"""Called with what is done and with the whole."""

# Work that takes less shows no bar: it would only flicker.
DELAY_SECONDS = 0.5


def is_terminal() -> bool:
    """Whether a person watches stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_notebook() -> bool:
    """Whether this runs in a cell of a Jupyter notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config


@contextlib.contextmanager
def bar(description: str, *, unit: str, enabled: bool = True) -> Iterator[Callable[[int, int, str], None]]:
    """Gives a function `(done, total, note)` that draws a bar, or does nothing where nobody watches."""
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
    """Gives what work on bytes reports to: a bar, and `report`."""
    with bar(description, unit="MB", enabled=enabled) as draw:

        def both(done: int, total: int) -> None:
            draw(done // 1_000_000, total // 1_000_000, "")
            if report is not None:
                report(done, total)

        yield both


def _new(description: str, unit: str, total: int) -> Any:
    # The import is needed by those alone who wait that long.
    from tqdm.auto import tqdm  # noqa: PLC0415

    class Bar(tqdm):  # type: ignore[misc]
        """A bar without the thread that looks after bars that are not updated: it would outlive them.

        It is a class of its own, since the program's other bars keep theirs.
        """

        monitor_interval = 0

    # No least step (`miniters`): a note is news where the count stands still.
    return Bar(desc=description, total=total, unit=unit, file=sys.stderr, leave=False, dynamic_ncols=True, miniters=0)
