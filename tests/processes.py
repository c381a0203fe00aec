"""The processes that a process has started."""

import contextlib
from pathlib import Path


def children(process: int) -> set[int]:
    """Returns the ids of a process's children."""
    found: set[int] = set()
    for thread in Path(f"/proc/{process}/task").iterdir():
        # A thread that has ended meanwhile has left its children to another.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= set(map(int, (thread / "children").read_text().split()))
    return found
