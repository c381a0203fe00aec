"""The scripts behind the Makefile: a skip is never taken for a pass, saved benches can be drawn, kernels are judged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rust_source import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import kernel_report

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.a" name="test_ran"/>
<testcase classname="tests.a" name="test_skipped"><skipped message="{reason}"/></testcase>
</testsuite></testsuites>"""


def run_script(name: str, *arguments: Path, ci: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CI": "true" if ci else ""}
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("reason", "ci", "status"),
    [
        ("SmolLM2 is not installed", True, 1),
        ("SmolLM2 is not installed", False, 0),
        ("hardware: no AVX-512", True, 0),
    ],
)
def test_skip_that_could_have_run_fails_in_ci(tmp_path: Path, reason: str, ci: bool, status: int) -> None:
    """P3: a test that was skipped is not a test that passed."""
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format(reason=reason))
    done = run_script("check_skips.py", report, ci=ci)
    assert done.returncode == status
    assert (f"tests.a::test_skipped: {reason}" in done.stderr) is (status == 1)
    assert "test_ran" not in done.stderr


def test_no_skip_passes_in_ci(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite><testcase classname="a" name="b"/></testsuite></testsuites>')
    assert run_script("check_skips.py", report, ci=True).returncode == 0


def test_saved_benches_are_drawn(tmp_path: Path) -> None:
    for run, medians in enumerate([{"test_load": 0.5, "test_decode": 0.25}, {"test_load": 0.4, "test_new": 0.1}]):
        benches = [{"name": name, "stats": {"median": median}} for name, median in medians.items()]
        document = {"datetime": f"2026-01-0{run + 1}T00:00:00", "benchmarks": benches}
        (tmp_path / f"{run}.json").write_text(json.dumps(document))
    picture = tmp_path / "out" / "benchmarks.png"
    assert run_script("plot_benchmarks.py", tmp_path, picture).returncode == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    done = run_script("plot_benchmarks.py", tmp_path, tmp_path / "benchmarks.png")
    assert done.returncode == 1
    assert "make bench" in done.stderr


# What llvm-readelf-22 --notes prints, shortened.
NOTES = """Displaying notes found in: .note
    AMDGPU Metadata:
        ---
amdhsa.kernels:
  - .args:
      - .offset:         0
        .size:           80
        .value_kind:     by_value
    .group_segment_fixed_size: {lds}
    .max_flat_workgroup_size: 256
    .name:           {name}
    .private_segment_fixed_size: 0
    .sgpr_count:     63
    .sgpr_spill_count: 0
    .symbol:         {name}.kd
    .vgpr_count:     97
    .vgpr_spill_count: {spills}
  - .group_segment_fixed_size: 16
    .max_flat_workgroup_size: 1024
    .name:           argmax
    .vgpr_count:     18
amdhsa.target:   amdgcn-amd-amdhsa--gfx1100
"""


def test_kernel_report_reads_notes() -> None:
    kernels = kernel_report.parse_notes(NOTES.format(name="gemv_q4_k", lds=30752, spills=0), "gfx1100")
    assert [(k.name, k.threads, k.vgprs, k.sgprs, k.lds) for k in kernels] == [
        ("gemv_q4_k", 256, 97, 63, 30752),
        ("argmax", 1024, 18, 0, 16),
    ]
    # 97 registers are rounded up to 120 of 1536.
    assert kernels[0].waves == 12
    assert [k.faults() for k in kernels] == [[], []]


@pytest.mark.parametrize(
    ("name", "lds", "spills", "faults"),
    [("gemv_q4_k", 65536, 1, 1), ("repack_q4_k", 65536, 1, 0), ("repack_q4_k", 65537, 0, 1), ("matmul_x", 65537, 2, 2)],
)
def test_kernel_report_fails_on_spills_and_shared_memory(name: str, lds: int, spills: int, faults: int) -> None:
    kernels = kernel_report.parse_notes(NOTES.format(name=name, lds=lds, spills=spills), "gfx1100")
    assert len(kernels[0].faults()) == faults
