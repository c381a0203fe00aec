"""The machine and its devices, for the head of the report. It has no personal data."""

import os
import platform
import re
import socket
from collections import Counter
from pathlib import Path
from typing import Any

from rocmforge import _rocmforge
from rocmforge.cli.device_test.outcome import FAILED, OK, Job, Outcome
from rocmforge.cli.summary import gpu_lines, machine_line

# Files in which the kernel says which driver it has; either may be missing.
DRIVER_FILES = (Path("/sys/module/amdgpu/version"), Path("/proc/driver/nvidia/version"))


def lines() -> list[str]:
    """Processor, memory, system and Python."""
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    except OSError:
        system = "unknown distribution"
    drivers = [file.read_text(encoding="utf-8").splitlines()[0].strip() for file in DRIVER_FILES if file.is_file()]
    python = f"Python {platform.python_version()} ({platform.machine()})"
    return [f"machine: {machine_line()}", f"system: {', '.join([system, *drivers, python])}"]


def devices(job: Job) -> Outcome:
    """Every GPU that there is, and every kernel loaded onto the one that is tested."""
    report = _rocmforge.doctor(job.device, lambda done, total: job.watch(f"loading kernels, {done} of {total} units"))
    gpu = report["devices"][1]
    details = gpu_lines(report, taken="tested")
    rows = gpu.get("kernels")
    figures: dict[str, Any] = {
        "usable": rows is not None,
        "detail": gpu["detail"],
        "system": report["system"],
        "gpus": report["gpus"],
        "gpu_drivers": report["gpu_drivers"],
        "tuned_as": gpu.get("tuned_as"),
        "matrix_library": gpu.get("matrix_library"),
        "decode_steps": gpu.get("decode_steps"),
    }
    if rows is None:
        return Outcome(FAILED, gpu["detail"], details, figures)
    how = Counter(re.sub(r" in [\d.]+ s$", "", row["code"] or "NOT USABLE") for row in rows)
    problems = dict.fromkeys(f"{row['unit']}: {row['problem']}" for row in rows if row["problem"] is not None)
    figures |= {"kernels": dict(how), "problems": list(problems)}
    details += [f"kernels: {', '.join(f'{count} {code}' for code, count in how.most_common())}"]
    details += [f"tuned as: {gpu['tuned_as']}", f"matrix library of the vendor: {gpu['matrix_library']}"]
    details += [gpu["decode_steps"], *list(problems)[:5]]
    unusable = sum(row["problem"] is not None for row in rows)
    note = f"; {unusable} of {len(rows)} rows of kernels cannot be used" if unusable else ""
    return Outcome(FAILED if problems else OK, gpu["detail"] + note, details, figures)


def scrubbed(value: Any) -> Any:
    """A report without the names of the machine and of the person's folder."""
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed(item) for item in value]
    return _scrubbed_text(value) if isinstance(value, str) else value


def _scrubbed_text(text: str) -> str:
    # The root "/" is not a home folder.
    homes = [home for home in (os.path.expanduser("~"), os.environ.get("HOME", "")) if len(home) > 1]  # noqa: PTH111
    for home in homes:
        text = text.replace(home, "~")
    text = re.sub(r"/(home|Users)/[^/\s:]+", r"/\1/<user>", text)
    host = socket.gethostname()
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", "<host>", text) if host not in ("", "localhost") else text
