"""Programs with AMD's libraries, as `scripts/test/test_rocm.sh` unpacked them: this Python, run by their C library."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from rust_source import ROOT

# The major versions of ROCm that are unpacked.
RELEASES = ("7", "6")
# Settings of the machine that would choose other libraries or devices.
DECIDES = ("ROCMFORGE_", "ROCM_PATH", "LD_LIBRARY_PATH", "HIP_", "HSA_", "ROCR_", "GPU_DEVICE_ORDINAL")


def folder(release: str) -> Path:
    return ROOT / "target" / "rocm" / release


def library(release: str, name: str) -> Path:
    return folder(release) / "usr/lib/x86_64-linux-gnu" / name


def command(release: str, *arguments: str | Path) -> list[str]:
    """This Python with AMD's libraries."""
    loader = library(release, "ld-linux-x86-64.so.2")
    return [str(loader), "--library-path", str(loader.parent), sys.executable, *map(str, arguments)]


def run(
    release: str, *arguments: str | Path, stdin: bytes = b"", within: tuple[str, ...] = (), **settings: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs Python, as an argument of the command `within`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(DECIDES)}
    return subprocess.run(
        [*within, *command(release, *arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        env=environment | settings,
    )


def interpreter(release: str, place: Path) -> Path:
    """A program that is this Python with AMD's libraries, for an engine that starts its helpers by `sys.executable`."""
    program = place / "python"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command(release))} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program
