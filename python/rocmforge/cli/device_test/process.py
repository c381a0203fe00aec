"""Runs a part in a separate process, and reports how it ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rocmforge.cli.device_test.child import GROUPS_FILE, JOB_FILE, RESULT_FILE, WATCH_FILE
from rocmforge.cli.device_test.outcome import FAILED, Outcome

POLL_SECONDS = 0.05
END_SECONDS = 10.0
# Limits on the quoted end of the process's output, which has the messages of drivers.
SHOWN_LINES = 12
SHOWN_CHARACTERS = 300
# Uses the module path of this process, so that the test covers this installation.
START = """
import json, os, sys
with open(os.path.join(sys.argv[1], "path.json")) as file:
    sys.path[:] = json.load(file)
from rocmforge.cli.device_test.child import main
main()
"""
COMMAND = (sys.executable, "-P", "-c", START)


def run_part(
    job: dict[str, Any],
    seconds: float,
    tell: Callable[[str], None] = lambda _: None,
    command: Sequence[str] = COMMAND,
) -> Outcome:
    """The outcome of a part; `FAILED` with the signal where its process died, or when its time is up.

    Args:
        job: The fields of `Job` but folder and watch, and the name of the `part`.
        seconds: The time after which the process is killed.
        tell: Called from time to time with the current case.
        command: The command to start; a folder is appended as its last argument.
    """
    with tempfile.TemporaryDirectory(prefix="rocmforge-") as name:
        folder = Path(name)
        (folder / JOB_FILE).write_text(json.dumps(job), encoding="utf-8")
        (folder / "path.json").write_text(json.dumps([str(entry) for entry in sys.path]), encoding="utf-8")
        printed = folder / "printed"
        with printed.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [*command, name],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            how = _wait(process, time.monotonic() + seconds, lambda: tell(_last_line(folder / WATCH_FILE)))
        finally:
            _end(process)
        result = folder / RESULT_FILE
        if how is None and result.exists():
            return Outcome(**json.loads(result.read_text(encoding="utf-8")))
        how = how or f"was left with exit code {process.returncode}"
        doing = _last_line(folder / WATCH_FILE)
        summary = f"its process {how}{f', during: {doing}' if doing else ''}"
        lines = printed.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
        figures = {"exit_code": process.returncode, "during": doing or None}
        details = [line[:SHOWN_CHARACTERS] for line in lines]
        if groups := [json.loads(line) for line in _lines(folder / GROUPS_FILE)]:
            cases, wrong = (sum(group[name] for group in groups) for name in ("cases", "wrong"))
            details.append(f"{len(groups)} groups before it: {cases:,} cases, {wrong:,} wrong")
            figures["groups"] = groups
        return Outcome(FAILED, summary, details, figures)


def _wait(process: subprocess.Popen[bytes], end: float, tell: Callable[[], None]) -> str | None:
    """`None` once the process has ended by itself, else what became of it."""
    while process.poll() is None:
        if time.monotonic() > end:
            return "did not end in its time and was ended"
        time.sleep(POLL_SECONDS)
        tell()
    if process.returncode < 0:
        try:
            name = signal.Signals(-process.returncode).name
        except ValueError:
            name = f"signal {-process.returncode}"
        return f"was killed by {name}"
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process, and those that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        # A process that hangs in its driver may outlive that.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    if process.stdin is not None:
        process.stdin.close()


def _last_line(file: Path) -> str:
    lines = _lines(file)
    return lines[-1] if lines else ""


def _lines(file: Path) -> list[str]:
    """Returns the whole lines of a file, none if it is not there. The last line may be unfinished."""
    try:
        return [line[:-1] for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
    except OSError:
        return []
