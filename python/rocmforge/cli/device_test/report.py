"""The whole test: parts one after the other, and the report of them."""

import datetime as dt
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rocmforge.cli.device_test import machine
from rocmforge.cli.device_test.outcome import FAILED, LEFT_OUT, NOT_CAPTURED, Outcome
from rocmforge.cli.device_test.parts import JOBS, PARTS, TUNE
from rocmforge.cli.device_test.process import run_part
from rocmforge.cli.version import version_line

# Changes when a reader of `--json` would have to.
FORMAT = 1

Report = dict[str, Any]
Runner = Callable[[dict[str, Any], float, Callable[[str], None]], Outcome]


def examine(
    device: str,
    *,
    quick: bool,
    only: Sequence[str] = (),
    tell: Callable[[int, str], None] = lambda _part, _what: None,
    run: Runner = run_part,
) -> Report:
    """Runs the parts, each in a separate process.

    Args:
        device: A name that `LLM` takes.
        quick: Few cases and small models.
        only: Names of parts; none for all of them. The devices come first in any case.
        tell: Called with the number of the part and what is running.
        run: What runs a part.

    Returns:
        What `doctor --test --json` prints.
    """
    on_gpu, usable = device != "cpu", True
    parts: list[dict[str, Any]] = []
    figures: dict[str, dict[str, Any]] = {}
    for number, (name, part) in enumerate(PARTS.items()):
        if only and name not in only and name != "devices":
            continue
        started = time.monotonic()
        if not on_gpu and part.without_gpu is not None:
            outcome = Outcome(LEFT_OUT, part.without_gpu)
        elif not usable:
            outcome = Outcome(LEFT_OUT, "there is no usable GPU")
        else:
            job = {"part": name, "device": device, "on_gpu": on_gpu, "quick": quick, "earlier": figures}
            outcome = run(job, part.seconds, functools.partial(tell, number))
        if name == "graphs":
            _judge_graphs(outcome, figures)
        if name == "devices" and on_gpu:
            # If its process died, that says nothing of the GPU: the other parts find out for themselves.
            usable = outcome.figures.get("usable", True)
            if not usable and device == "auto":
                outcome.verdict, on_gpu, usable = LEFT_OUT, False, True
                outcome.summary = f"the CPU is tested, since no GPU is usable: {outcome.summary}"
            if device == "auto":
                device = "gpu" if on_gpu else "cpu"
        figures[name] = outcome.figures
        seconds = round(time.monotonic() - started, 1)
        parts.append({"name": name, "title": part.title, "seconds": seconds} | asdict(outcome))
    return _report("--test", device, quick, parts)


def tune(device: str, *, quick: bool, tell: Callable[[str], None] = lambda _: None, run: Runner = run_part) -> Report:
    """Tries other launch parameters of the kernels, in a separate process.

    Args:
        device: A name that `LLM` takes.
        quick: A small model.
        tell: Called with what is running.
        run: What runs the process.

    Returns:
        What `doctor --tune --json` prints.
    """
    started, part = time.monotonic(), JOBS[TUNE]
    job = {"part": TUNE, "device": device, "on_gpu": True, "quick": quick, "earlier": {}}
    outcome = run(job, part.seconds, tell)
    seconds = round(time.monotonic() - started, 1)
    return _report("--tune", device, quick, [{"name": TUNE, "title": part.title, "seconds": seconds} | asdict(outcome)])


def _report(command: str, device: str, quick: bool, parts: list[dict[str, Any]]) -> Report:
    failed = [part["name"] for part in parts if part["verdict"] == FAILED]
    report = {
        "format": FORMAT,
        "command": command,
        "version": version_line(),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "device": device,
        "quick": quick,
        "machine": machine.lines(),
        "parts": parts,
        "failed": failed,
        "verdict": FAILED if failed else "ok",
    }
    scrubbed: Report = machine.scrubbed(report)
    return scrubbed


def _judge_graphs(outcome: Outcome, figures: dict[str, dict[str, Any]]) -> None:
    """If steps are not captured by default, it is news and no failure that captured ones differ.

    A part that died, or whose steps failed, has compared nothing, and stays a failure.
    """
    by_default = str(figures.get("devices", {}).get("decode_steps") or "")
    differ = outcome.figures.get("differ") or outcome.figures.get("wrong_processes")
    if by_default.startswith(NOT_CAPTURED) and differ:
        outcome.verdict = LEFT_OUT
        outcome.summary = f"{by_default}; captured all the same: {outcome.summary}"


def text_of(report: Report) -> str:
    """The report as a block of text."""
    kind = "quick" if report["quick"] else "full"
    lines = [f"{report['version']}, doctor {report['command']} ({kind}), {report['date']}", *report["machine"]]
    lines += [f"device: {report['device']}", ""]
    for part in report["parts"]:
        # A compiler's messages have several lines.
        first, *more = part["summary"].splitlines() or [""]
        lines.append(f"{part['verdict']:<9} {part['title']}: {first} [{part['seconds']:.1f} s]")
        lines += [f"          {line}" for line in [*more, *part["details"]]]
    done = [part for part in report["parts"] if part["verdict"] != LEFT_OUT]
    failed = ", ".join(report["failed"])
    lines += ["", f"FAILED: {failed}" if failed else f"ok: all {len(done)} parts that could be run"]
    return "\n".join(lines)
