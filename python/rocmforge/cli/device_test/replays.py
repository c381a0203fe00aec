"""Captured graphs that are repeated in many processes: some drivers read old numbers in one process of five."""

import json
import subprocess
import sys
from collections import Counter

from rocmforge.cli.device_test.outcome import Job

PROCESSES = 20
QUICK_PROCESSES = 2
# A process loads one file of kernels, which may have to be compiled first.
SECONDS = 120
# Finds modules where this process does: what is tested is the package that tests.
CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from rocmforge import _rocmforge
print(json.dumps({"wrong": _rocmforge.device_repeated_graph(sys.argv[2])}))
"""


def replays(job: Job) -> tuple[int, list[str]]:
    """Repeats a captured graph in one process after the other.

    Returns:
        The number of processes in which it was wrong, and lines for the report.
    """
    count = QUICK_PROCESSES if job.quick else PROCESSES
    found: Counter[str | None] = Counter()
    for number in range(count):
        job.watch(f"a repeated graph, process {number + 1} of {count}")
        found[_process(job.device)] += 1
    differ = count - found[None]
    lines = [f"a graph of 300 kernels, repeated 64 times in each of {count} processes: wrong in {differ or 'none'}"]
    lines += [f"in {times} of {count} processes: {wrong}" for wrong, times in found.items() if wrong is not None]
    return differ, lines


def _process(device: str) -> str | None:
    """The numbers that were wrong in a separate process, or how it ended; `None` if all were right."""
    command = [sys.executable, "-P", "-c", CODE, json.dumps([str(entry) for entry in sys.path]), device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"it did not end within {SECONDS} s"
    if done.returncode:
        last = (done.stderr.splitlines() or [""])[-1]
        return f"it ended with exit code {done.returncode} ({last})"
    wrong: str | None = json.loads(done.stdout)["wrong"]
    return wrong
