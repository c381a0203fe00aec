"""The units that kernels/gpu.h finds in each target: a macro of a generation does not tell them."""

import re
import shutil
import subprocess

import pytest
from rust_source import ROOT

CLANG = next((path for name in ("clang-22", "clang-23", "clang") if (path := shutil.which(name))), None)
WMMA11, WMMA12 = "HAS_WMMA11", "HAS_WMMA12"
# A target that this clang does not know is one that it knows, with the other's macro in place of its own.
TARGETS = {
    "gfx900": (None, set()),
    "gfx906": (None, {"HAS_SDOT4", "HAS_FDOT2"}),
    "gfx90a": (None, {"HAS_MFMA", "HAS_SDOT4", "HAS_FDOT2"}),
    "gfx942": (None, {"HAS_MFMA", "HAS_SDOT4", "HAS_FDOT2"}),
    "gfx1010": (None, set()),
    "gfx10-1-generic": (None, set()),
    "gfx1030": (None, {"HAS_SDOT4", "HAS_FDOT2"}),
    "gfx10-3-generic": (None, {"HAS_SDOT4", "HAS_FDOT2"}),
    "gfx1100": (None, {WMMA11, "HAS_SUDOT4", "HAS_FDOT2"}),
    "gfx1153": (None, {WMMA11, "HAS_SUDOT4", "HAS_FDOT2"}),
    "gfx1154": ("gfx1153", {WMMA11, "HAS_SUDOT4", "HAS_FDOT2"}),
    "gfx11-generic": (None, {WMMA11, "HAS_SUDOT4", "HAS_FDOT2"}),
    "gfx1170": ("gfx1100", {WMMA12, "HAS_SUDOT4", "HAS_FDOT2"}),
    "gfx1172": ("gfx1100", {WMMA12, "HAS_SUDOT4", "HAS_FDOT2"}),
    "gfx1201": (None, {WMMA12, "HAS_SUDOT4", "HAS_FDOT2"}),
    "gfx12-generic": (None, {WMMA12, "HAS_SUDOT4", "HAS_FDOT2"}),
    "gfx1250": (None, {"HAS_SUDOT4"}),
    "gfx1251": (None, {"HAS_SUDOT4"}),
    # Nobody has heard of it yet.
    "gfx1199": ("gfx1100", {"HAS_SUDOT4", "HAS_FDOT2"}),
}
OPTIONS = ["-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-std=c++17"]


def clang(target: str, *arguments: str) -> str:
    assert CLANG is not None
    base = TARGETS.get(target, (None, set()))[0]
    other = [] if base is None else [f"-U__{base}__", f"-D__{target}__=1"]
    command = [CLANG, *OPTIONS, f"--offload-arch={base or target}", *other, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(CLANG is None, reason="no clang for AMD GPUs")
@pytest.mark.parametrize("target", TARGETS)
def test_units_of_a_target(target: str) -> None:
    macros = clang(target, "-E", "-dM", str(ROOT / "kernels" / "gpu.h"))
    assert set(re.findall(r"^#define (HAS_\w+)", macros, re.MULTILINE)) == TARGETS[target][1]


@pytest.mark.skipif(CLANG is None, reason="no clang for AMD GPUs")
@pytest.mark.parametrize("target", ["gfx1250", "gfx10-1-generic"])
def test_products_of_a_target_without_matrix_units_compile(target: str, tmp_path) -> None:
    """For gfx1250 the compiler aborted: it was given the products of gfx1200."""
    source, code = ROOT / "kernels" / "matmul" / "matmul.hip", tmp_path / "code.co"
    includes = [f"-I{folder}" for folder in (ROOT / "kernels", *(ROOT / "kernels").glob("*/"))]
    clang(target, "-O1", "--no-gpu-bundle-output", "-DTYPE=Q8_0", *includes, str(source), "-o", str(code))
    assert code.read_bytes().startswith(b"\x7fELF")
