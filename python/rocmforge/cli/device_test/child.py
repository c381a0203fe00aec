"""A part of the test in a separate process, which `process` starts with a folder as its argument."""

import json
import os
import resource
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from rocmforge import RocmForgeError
from rocmforge.cli.device_test.outcome import FAILED, Job, Outcome
from rocmforge.cli.device_test.parts import JOBS

JOB_FILE = "job.json"
WATCH_FILE = "watch"
# A line of JSON for each group of cases that has ended.
GROUPS_FILE = "groups"
RESULT_FILE = "result.json"


def main() -> None:
    """Does the job of the folder and leaves its result there."""
    # An abort is expected here: no core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Path(sys.argv[1])
    given = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    name = given.pop("part")
    with (
        (folder / WATCH_FILE).open("w", encoding="utf-8", buffering=1) as watched,
        (folder / GROUPS_FILE).open("w", encoding="utf-8", buffering=1) as ended,
    ):
        job = Job(
            folder=folder,
            watch=lambda what: print(what, file=watched),
            done=lambda group: print(json.dumps(group), file=ended),
            **given,
        )
        outcome = _outcome(name, job)
    # Written atomically, since the file is the result.
    unfinished = folder / f"{RESULT_FILE}.unfinished"
    unfinished.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    unfinished.rename(folder / RESULT_FILE)


def _outcome(name: str, job: Job) -> Outcome:
    try:
        return JOBS[name].run(job)
    except (RocmForgeError, OSError) as error:
        return Outcome(FAILED, f"{type(error).__name__}: {error}")


def _end_with_parent() -> None:
    """The other end of standard input is the parent's, and closes when it ends, in whatever way."""
    while os.read(0, 1):
        pass
    os._exit(1)
