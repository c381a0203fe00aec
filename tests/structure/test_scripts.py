"""The scripts behind the Makefile: a skip is never taken for a pass, saved benches can be drawn, kernels are judged, a
GPU is tested whole."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rust_source import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "bench"))
sys.path.insert(0, str(ROOT / "scripts" / "kernels"))
import bench_cpu
import bench_load
import kernel_report

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.a" name="test_ran"/>
<testcase classname="tests.a" name="test_skipped"><skipped message="{reason}"/></testcase>
</testsuite></testsuites>"""


def run_script(name: str, *arguments: Path | str, ci: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CI": "true" if ci else ""}
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("versions", "targets"),
    [
        ([0, 110000], "gfx1100"),
        ([90010, 90010, 0], "gfx90a"),
        ([90402, 90500], "gfx942,gfx950"),
        # Their code is that of their families.
        ([100301, 120001], "gfx10-3-generic,gfx12-generic"),
        ([100102], "gfx10-1-generic"),
        ([110000, 110003], "gfx11-generic,gfx1100"),
        # Newer than the lists.
        ([110000, 130000], ""),
        ([0], "none"),
        ([], "none"),
    ],
)
def test_the_demo_builds_for_the_gpus_that_are_there(tmp_path: Path, versions: list[int], targets: str) -> None:
    """AMD's driver lists them: a node per processor, CPUs with version 0."""
    for number, version in enumerate(versions):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\n")
    wsl = tmp_path / "dxg"
    done = run_script("setup/local_targets.py", tmp_path, wsl)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{targets}\n", "")
    # Under WSL the driver is the host's: it lists nothing here, and the GPU may be any.
    wsl.touch()
    expected = "" if targets == "none" else targets
    assert run_script("setup/local_targets.py", tmp_path, wsl).stdout == f"{expected}\n"


def write_tree(folder: Path) -> Path:
    """Writes what `make` needs for the stamp of the targets; returns the stamp."""
    for name in ("Makefile", "src/gpu/build.rs", "scripts/setup/gpu_tools.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "venv.stamp").touch()
    return folder / ".venv" / "targets.stamp"


# Whichever way somebody goes on after the compiler was installed: `make wheel` begins with the stamp, `make test` and
# the like with the script.
@pytest.mark.parametrize("way", [["make", "--silent", ".venv/targets.stamp"], ["scripts/setup/gpu_tools.sh"]])
def test_what_was_built_without_a_compiler_is_built_again(tmp_path: Path, way: list[str]) -> None:
    """Somebody without root builds, is told of the missing compiler, and has it installed by somebody else."""
    stamp = write_tree(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in ("make", "bash", "sh", "cat", "dirname", "find", "mkdir", "touch"):
        (programs / tool).symlink_to(shutil.which(tool) or tool)
    # Nobody's root, so that nothing is installed here.
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (programs / "id").chmod(0o755)
    environment = {"PATH": str(programs)}

    def is_built_again() -> bool:
        files = [tmp_path / "src/gpu/build.rs", *([stamp] if way[0] == "make" and stamp.exists() else [])]
        for file in files:
            os.utime(file, (1, 1))
        done = subprocess.run(way, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (changed,) = {file.stat().st_mtime != 1 for file in files}
        return changed

    is_built_again()
    assert not is_built_again()
    for tool in ("clang-22", "lld-22", "llvm-objdump-22", "llvm-readelf-22"):
        (programs / tool).write_text("#!/bin/sh\necho 'clang version 22.1.0'\n")
        (programs / tool).chmod(0o755)
    assert is_built_again()
    assert not is_built_again()
    # Another version by the same name.
    for version, is_new in (("18.1.3", True), ("18.1.3", False), ("23.1.0", True)):
        (programs / "clang").write_text(f"#!/bin/sh\necho 'clang version {version}'\n")
        (programs / "clang").chmod(0o755)
        assert is_built_again() == is_new


def test_what_was_built_for_other_targets_is_built_again(tmp_path: Path) -> None:
    """A wheel of `make demo`, for one GPU, is not taken for that of `make wheel`."""
    stamp = write_tree(tmp_path)
    ages = []
    for targets in ("", "", "gfx1100", ""):
        if stamp.exists():
            os.utime(stamp, (1, 1))
        command = ["make", "--silent", f"HIP_TARGETS={targets}", ".venv/targets.stamp"]
        subprocess.run(command, cwd=tmp_path, check=True)
        ages.append(stamp.stat().st_mtime == 1)
    assert ages == [False, True, False, False]


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
    done = run_script("test/check_skips.py", report, ci=ci)
    assert done.returncode == status
    assert (f"tests.a::test_skipped: {reason}" in done.stderr) is (status == 1)
    assert "test_ran" not in done.stderr


def test_no_skip_passes_in_ci(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite><testcase classname="a" name="b"/></testsuite></testsuites>')
    assert run_script("test/check_skips.py", report, ci=True).returncode == 0


def test_saved_benches_are_drawn(tmp_path: Path) -> None:
    for run, medians in enumerate([{"test_load": 0.5, "test_decode": 0.25}, {"test_load": 0.4, "test_new": 0.1}]):
        benches = [{"name": name, "stats": {"median": median}} for name, median in medians.items()]
        document = {"datetime": f"2026-01-0{run + 1}T00:00:00", "benchmarks": benches}
        (tmp_path / f"{run}.json").write_text(json.dumps(document))
    picture = tmp_path / "out" / "benchmarks.png"
    assert run_script("bench/plot_benchmarks.py", tmp_path, picture).returncode == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    done = run_script("bench/plot_benchmarks.py", tmp_path, tmp_path / "benchmarks.png")
    assert done.returncode == 1
    assert "make bench" in done.stderr


@pytest.mark.deep
def test_served_rows_are_those_of_bench_serve(tmp_path: Path, model: Path) -> None:
    """A row for each number of sequences, with a figure for each way to sample."""
    shutil.copy(model, tmp_path / "tiny.q4_0.gguf")
    done = run_script("bench/bench_gpu.py", "--device", "cpu", "--models", tmp_path, "--rows", "tiny:q4_0", "--served",
                      "3x8x33", "--sequences", "1,3", "--rounds", "2", "--", "-t", "1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    headers, _, *rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert headers[:2] == ["model, requests at once", "greedy"]
    assert [row[0] for row in rows] == ["tiny:q4_0, 1", "tiny:q4_0, 3"]
    for row in rows:
        assert len(row) == len(headers)
        assert row[1].endswith("(100%)")
        assert all(float(cell.split()[0].replace(",", "")) > 0 for cell in row[1:-1])


def test_a_load_is_one_table(
    tmp_path: Path, long_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows behind short and long contexts and of served requests, each with a figure."""
    shutil.copy(long_model, tmp_path / "tiny.q4_0.gguf")
    rows = [
        bench_load.Decode("", "tiny:q4_0", "8", "1"),
        bench_load.Decode("int8 KV", "tiny:q4_0", batches="2", depth=40, options=bench_load.INT8),
        bench_load.Served("", "tiny:q4_0", 2, "temperature 0.8, top-p, top-k"),
    ]
    monkeypatch.setattr(bench_load, "ROWS", rows)
    monkeypatch.setattr(sys, "argv", ["bench_load.py", "--models", str(tmp_path), "--device", "cpu", "--rounds", "1"])
    bench_load.main()
    cells = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    served = "served, 2 x 512/128, temperature 0.8, top-p, top-k"
    assert [row for _, row, _ in cells] == ["pp8", "tg", "tg2 @ d40, int8 KV", served]
    assert all(float(speed.replace(",", "")) > 0 for *_, speed in cells)


def test_the_cpu_is_compared_as_one_table(
    tmp_path: Path, long_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of both engines, by a program with llama-bench's options and output; AVX2 once more."""
    shutil.copy(long_model, tmp_path / "tiny.q4_0.gguf")
    bench = tmp_path / "llama-bench"
    bench.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "told = dict(zip(sys.argv, sys.argv[1:]))\n"
        "assert told['-m'].endswith('tiny.q4_0.gguf') and told['-rtr'] == '1' and told['-o'] == 'json', told\n"
        "depth = told.get('-gp', '0,0').split(',')[0]\n"
        "rows = [(told['-p'], 0, 500), (0, told['-n'], 50), *([(depth, told['-n'], 40)] if int(depth) else [])]\n"
        "print(json.dumps([dict(n_prompt=int(p), n_gen=int(n), samples_ts=[s - 1, s, s + 2]) for p, n, s in rows]))\n"
    )
    bench.chmod(0o755)
    loads = [
        bench_cpu.Load("tiny:q4_0", 8, 4, "≥ 1.5"),
        bench_cpu.Load("tiny:q4_0", 8, 4, depth=40, ours="--kv-cache-dtype int8", what="over int8", reps=1, rounds=2),
    ]
    monkeypatch.setattr(bench_cpu, "LOADS", loads)
    monkeypatch.setattr(bench_cpu, "TYPES", loads[:1])
    monkeypatch.setenv("ROCMFORGE_CPU_ISA", "")
    options = ["--ik", str(bench), "--ik-avx2", str(bench), "--models", str(tmp_path), "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["bench_cpu.py", *options])
    bench_cpu.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    assert [(row[0], row[1].split(" (")[0], row[5]) for row in rows] == [
        ("tiny:q4_0", "pp8", "≥ 1.5"),
        ("tiny:q4_0", "tg", "≥ 1"),
        ("tiny:q4_0, over int8", "tg @ d40", "≥ 1"),
        ("tiny:q4_0, AVX2", "pp8", "≥ 1"),
        ("tiny:q4_0, AVX2", "tg", "≥ 1"),
    ]
    assert [float(row[3]) for row in rows] == [500, 50, 40, 500, 50]
    for row in rows:
        ours, theirs = (float(cell.replace(",", "")) for cell in row[2:4])
        assert float(row[4].split()[0]) == pytest.approx(ours / theirs, abs=0.01)


@pytest.mark.deep
def test_servers_are_compared(tmp_path: Path, model: Path) -> None:
    """A server of ours stands for another one; a load that it refuses ends the program."""
    other = f"{sys.executable} -m rocmforge serve {model} --num-threads 1 --port {{port}}"
    options = ["--ours", "--num-threads 1", "--rounds", "1", "--", "--num-prompts", "4", "--output-len", "8"]
    compare = ["compare_served.py", "-m", model, "--other"]
    done = run_script(*compare, other, *options, "--input-len", "8", "--max-concurrency", "1,4")
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["1, all", "4, all"]
    for row in rows:
        speeds, first, after = ([float(figure.replace(",", "")) for figure in cell.split(" and ")] for cell in row[1:4])
        assert float(row[4].split()[0]) == pytest.approx(speeds[0] / speeds[1], abs=0.01)
        assert len(first) == len(after) == 2
        assert min(first) > 0
    for command, length, said in (
        (other, "99999", "4 of 4 requests failed"),
        ("false {port}", "1", "the server did not start: false "),
        ("false", "1", "got 'false', expected {port} in it"),
    ):
        done = run_script(*compare, command, *options, "--input-len", length)
        assert done.returncode != 0
        assert said in done.stderr


# A shortened print of llvm-readelf-22 --notes.
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


# Programs that the script calls.
TOOLS = (
    "bash",
    "sh",
    "env",
    "dirname",
    "mktemp",
    "grep",
    "sed",
    "tee",
    "tail",
    "head",
    "sort",
    "rm",
    "realpath",
    "cat",
)
# Stands for an interpreter with rocmforge and pytest in it.
PYTHON = """#!/bin/sh
case "$*" in
"-m rocmforge doctor --device gpu") printf '%b\\n' "$DOCTOR" ;;
*" pytest "*) echo "$PYTEST" && exit "$PYTEST_STATUS" ;;
-) cat >/dev/null ;;
esac
"""
USABLE = "device cpu: scalar\\ndevice gpu: Radeon (gfx1100, HIP 7.0), 96 multiprocessors"
GREEN = {"DOCTOR": USABLE, "PYTEST": "7 passed, 1 skipped in 0.10s", "PYTEST_STATUS": "0"}
CONFORMED = "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s"


def run_test_gpu(
    folder: Path, conformance: str | None, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Runs scripts/test/test_gpu.sh; `conformance`: what the test binary prints, if there is one."""
    (folder / "python").write_text(PYTHON)
    (folder / "conformance").write_text(f"#!/bin/sh\necho '{conformance}'\n")
    for program in ("python", "conformance"):
        (folder / program).chmod(0o755)
    command = [ROOT / "scripts" / "test" / "test_gpu.sh", "--python", folder / "python", *arguments]
    if conformance is not None:
        command += ["--conformance", folder / "conformance"]
    # A path without cargo; a driver that was named, so that a missing GPU is a failure.
    (folder / "bin").mkdir()
    for tool in TOOLS:
        (folder / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    environment = {"PATH": str(folder / "bin"), "HOME": str(folder), "ROCMFORGE_GPU_LIBRARY": "none.so"}
    environment |= GREEN | settings
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(("finds", "summary"), [(0, "passed"), (1, "FAILED")])
def test_gpu_memory_is_checked_where_it_can_be(tmp_path: Path, finds: int, summary: str) -> None:
    """An error that the checker finds is a failure, though every test passed."""
    checker = tmp_path / "toolkit" / "bin" / "compute-sanitizer"
    checker.parent.mkdir(parents=True)
    checker.write_text(f'#!/bin/sh\nshift 2\n[ "$1" = --target-processes ] || exit 0\nshift 2\n"$@"\nexit {finds}\n')
    checker.chmod(0o755)
    doctor = USABLE.replace("gfx1100", "sm_90")
    done = run_test_gpu(tmp_path, CONFORMED, DOCTOR=doctor, CUDA_HOME=str(tmp_path / "toolkit"))
    assert done.returncode == finds, done.stdout + done.stderr
    assert f"{summary}   memory checker: 7 passed, 1 skipped in 0.10s" in done.stdout


def test_gpu_summary_has_the_figures_of_every_part(tmp_path: Path) -> None:
    done = run_test_gpu(tmp_path, CONFORMED)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout[done.stdout.index("==> on Radeon (gfx1100") :].splitlines()
    assert summary[1].startswith(f"passed   conformance: {CONFORMED}, ")
    assert [line.split(":")[0] for line in summary[2:5]] == [
        "passed   Python suite, batch-invariant",
        "passed   golden models, default mode",
        "SKIPPED  memory checker",
    ]
    assert "7 passed, 1 skipped in 0.10s" in summary[2]
    assert summary[-1] == "all green on the GPU"


@pytest.mark.parametrize(
    ("conformance", "settings", "message"),
    [
        (None, {}, "FAILED   conformance: no cargo here"),
        (CONFORMED.replace("5 passed", "0 passed"), {}, "FAILED   conformance: nothing was tested"),
        (f"test a ... skipped: no GPU\n{CONFORMED}", {}, "FAILED   conformance: .*some did not run: skipped: no GPU"),
        (CONFORMED, {"PYTEST": "1 failed, 6 passed in 0.1s", "PYTEST_STATUS": "1"}, "FAILED   Python suite.*1 failed"),
        (CONFORMED, {"PYTEST": "7 skipped in 0.10s"}, "FAILED   golden models, default mode: nothing was tested"),
        (CONFORMED, {"DOCTOR": f"{USABLE}\\nrows: NOT USABLE: no code"}, "FAILED   kernels: some do not load"),
        (CONFORMED, {"DOCTOR": "device gpu: not usable: no driver"}, "FAILED: there should be a GPU"),
    ],
)
def test_gpu_part_that_does_not_run_is_a_failure(
    tmp_path: Path, conformance: str | None, settings: dict[str, str], message: str
) -> None:
    """P3: on a GPU too, what was not tested is not a pass."""
    done = run_test_gpu(tmp_path, conformance, **settings)
    assert done.returncode == 1
    assert re.search(message, done.stdout + done.stderr), done.stdout + done.stderr
    assert "all green" not in done.stdout


@pytest.mark.parametrize("node", ["kfd", "dxg", "nvidiactl", None])
def test_a_gpu_that_the_system_has_must_be_usable(tmp_path: Path, node: str | None) -> None:
    """It must be so under WSL, too, where AMD's GPUs are behind Windows' device file."""
    (tmp_path / "dev").mkdir()
    if node is not None:
        (tmp_path / "dev" / node).touch()
    settings = {"DOCTOR": "device gpu: not usable: no driver", "ROCMFORGE_GPU_LIBRARY": ""}
    done = run_test_gpu(tmp_path, None, "--dev", str(tmp_path / "dev"), **settings)
    if node is None:
        assert (done.returncode, done.stdout.splitlines()[-1][:8]) == (0, "SKIPPED:")
    else:
        assert done.returncode == 1
        assert f"there is {tmp_path}/dev/{node}" in done.stderr


@pytest.mark.parametrize("arguments", [["python3"], ["--wheel"]])
def test_gpu_usage(arguments: list[str]) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "test" / "test_gpu.sh", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--wheel" in done.stderr


@pytest.mark.parametrize("seconds", ["9", "x", "-1", "1.5"])
def test_fuzz_usage(seconds: str) -> None:
    done = subprocess.run([ROOT / "scripts" / "test" / "fuzz.sh", seconds], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"got '{seconds}'" in done.stderr


def test_each_fuzz_target_has_its_parts() -> None:
    """A target that the script does not run, or whose inputs no test replays, would rot."""
    fuzz = ROOT / "fuzz"
    targets = {path.stem for path in (fuzz / "targets").glob("*.rs")}
    (listed,) = re.findall(r"^targets=\((.*)\)$", (ROOT / "scripts" / "test" / "fuzz.sh").read_text(), re.MULTILINE)
    assert set(listed.split()) == targets
    assert set(re.findall(r'^name = "(\w+)"$', (fuzz / "Cargo.toml").read_text(), re.MULTILINE)) == targets
    assert set(re.findall(r'replay\("(\w+)"', (ROOT / "src" / "fuzz_tests.rs").read_text())) == targets
    assert {path.stem for path in fuzz.glob("*.dict")} == targets
    inputs = [path for path in (fuzz / "corpus").rglob("*") if path.is_file()]
    assert {path.parent.name for path in inputs} == targets
    assert sum(path.stat().st_size for path in inputs) < 300_000
