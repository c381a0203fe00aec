"""`make test-rocm` skips aloud, and leaves out nothing of AMD's that the engine declares."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rust_source import ROOT

sys.path.insert(0, str(ROOT / "tests" / "rocm"))
import amd_names
import rust_abi
import units

PARTS, LIBRARIES = amd_names.PARTS, amd_names.LIBRARIES


@pytest.mark.parametrize("part", PARTS)
def test_every_number_of_the_engine_is_compared(part: str) -> None:
    ours, names = PARTS[part]
    assert len(ours) > 4
    assert ours.keys() == names.keys()


def test_every_code_of_a_lost_device_is_compared() -> None:
    assert rust_abi.lost_devices() | {2} == amd_names.ERRORS.keys() | amd_names.OF_CUDA


def test_every_function_is_compared() -> None:
    """By what the sources spell, whatever the patterns of this test find."""
    spelt = {"HIP": rust_abi.HIP.count("fn hip"), "hipRTC": rust_abi.RTC.count("fn hiprtc")}
    spelt["hipBLASLt"] = rust_abi.BLAS.count("(&library, dialect, ")
    assert {name: len(functions) for name, functions in LIBRARIES.items()} == spelt


def test_every_type_of_a_function_can_be_compared() -> None:
    """A type that has no kind is a `KeyError`."""
    functions = amd_names.FUNCTIONS.values()
    types = {rust for function in functions for rust in (*function.arguments, function.result)}
    assert all(map(rust_abi.kinds, types))


def test_units_are_those_of_the_table() -> None:
    """Every file of kernels that is no header's, but for the one that AMD GPUs have no kernels of."""
    files = {path.stem for path in (ROOT / "kernels").rglob("*.hip")}
    assert {name.partition(".")[0] for name in units.units()} == files
    assert units.options("gfx1100")[0] == "--offload-arch=gfx1100"


def run_without_apt(place: Path, *, ci: bool) -> subprocess.CompletedProcess[str]:
    for tool in ("bash", "dirname"):
        (place / tool).symlink_to(shutil.which(tool) or tool)
    environment = {"PATH": str(place), "CI": "true" if ci else ""}
    command = [str(ROOT / "scripts" / "test" / "test_rocm.sh"), sys.executable]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


@pytest.mark.parametrize("ci", [False, True])
def test_without_packages_it_is_skipped_with_the_reason(tmp_path: Path, ci: bool) -> None:
    """In CI what was not tested is a failure."""
    done = run_without_apt(tmp_path, ci=ci)
    assert done.stdout == (
        "SKIPPED: AMD's software is not tested: its packages come from Debian by apt-get and dpkg\n"
    ), done.stderr
    assert done.returncode == int(ci)
