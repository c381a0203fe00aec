"""hipRTC of ROCm 7 compiles the kernels, started as the engine starts it: by a job for its helper."""

import json
import sys
from pathlib import Path

import pytest
import rocmforge._rocmforge
from rust_source import ROOT
from units import options, units
from userland import library, run

sys.path.insert(0, str(ROOT / "scripts" / "setup"))
import local_targets

HELPER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("rocmforge._rocmforge", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run_helper()
"""
MARKER = "the answer is"
UNITS = units()
# A unit that every model needs, and the two kinds of products.
FEW_UNITS = ("step", "gemv.q4_k", "matmul.q4_k")
# The targets that this hipRTC does not know, and what it answers.
REFUSED = {
    "gfx1154": "status 6",
    "gfx1170": "status 6",
    "gfx1310": "status 6",
}
# GPUs for which the wheel has no code, beside those that it has code for.
WITHOUT_CODE = ("gfx803", "gfx1010", "gfx1012", "gfx1250", "gfx1251", *REFUSED)
TARGETS = sorted({*local_targets.built_targets(), *local_targets.built_targets().values(), *WITHOUT_CODE})


def compiled(unit: str, target: str) -> tuple[bytes, str]:
    """The code object, or how the compiler failed."""
    job = {
        "marker": MARKER,
        "kind": "compile",
        "platform": "amd",
        "library": str(library("7", "libhiprtc.so.7")),
        "unit": unit,
        "options": [*options(target), *UNITS[unit]],
    }
    file = Path(rocmforge._rocmforge.__file__)
    done = run("7", "-I", "-S", "-c", HELPER, file, stdin=json.dumps(job).encode())
    _, _, answer = done.stdout.partition(MARKER.encode())
    size = int.from_bytes(answer[:8], "little")
    if len(answer) != 8 + size + 1:
        return b"", f"its process ended with {done.returncode}: {done.stderr.decode()[-2000:]}"
    body = answer[8 : 8 + size]
    return (body, "") if answer.endswith(b"+") else (b"", body.decode())


def check_code(unit: str, target: str) -> None:
    code, problem = compiled(unit, target)
    assert problem == "", f"{unit} for {target}: {problem}"
    assert code[:4] == b"\x7fELF"
    # The note of the code object names its target.
    assert f"amdgcn-amd-amdhsa--{target}".encode() in code


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_compiles_for_gfx1100(unit: str) -> None:
    check_code(unit, "gfx1100")


@pytest.mark.parametrize("target", [target for target in TARGETS if target not in REFUSED])
@pytest.mark.parametrize("unit", FEW_UNITS)
def test_a_unit_compiles_for_a_target(unit: str, target: str) -> None:
    check_code(unit, target)


@pytest.mark.parametrize("target", REFUSED)
def test_an_unknown_target_is_refused(target: str) -> None:
    code, problem = compiled("step", target)
    assert code == b""
    assert problem.startswith(REFUSED[target])
