"""`rocmforge doctor --test`: what it reports, how it ends, and that a part that dies takes nothing with it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import typer.main
from processes import children
from rocmforge._rocmforge import check_gguf
from rocmforge.cli.app import app
from rocmforge.cli.device_test import graphs, machine, made_up, outcome, replays, tune
from rocmforge.cli.device_test import report as reports
from rocmforge.cli.device_test.parts import PARTS
from rocmforge.cli.device_test.process import run_part
from rocmforge.cli.device_test.report import examine, text_of
from rust_source import ROOT
from stand_in import STAND_IN, needs_stand_in

import gguf

LOGIN = "a-certain-login"
ON_CPU = {"kernels", "sequences", "bandwidth", "speed"}


def doctor(*arguments, **settings):
    """Runs the program `doctor`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROCMFORGE_", "HIPSIM_"))}
    command = [sys.executable, "-m", "rocmforge", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment | settings)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """A quick test of the CPU by somebody with a home and a folder for temporary files; and that folder."""
    home = tmp_path_factory.mktemp("home") / "a-certain-person"
    temporary = home / "tmp"
    temporary.mkdir(parents=True)
    settings = {"HOME": str(home), "TMPDIR": str(temporary), "USER": LOGIN, "LOGNAME": LOGIN}
    return doctor("--test", "--quick", "--device", "cpu", "--json", **settings), temporary


def test_report_of_a_cpu(on_cpu):
    """Every part with its verdict; those that need a GPU are left out, with the reason."""
    done, _ = on_cpu
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["format"], report["device"], report["quick"]) == (1, "cpu", True)
    assert (report["verdict"], report["failed"]) == ("ok", [])
    assert [part["name"] for part in report["parts"]] == list(PARTS)
    for part in report["parts"]:
        assert set(part) == {"name", "title", "seconds", "verdict", "summary", "details", "figures"}
        assert part["verdict"] == ("ok" if part["name"] in ON_CPU else "left out"), part
        assert part["summary"]
        assert isinstance(part["seconds"], float)
    parts = {part["name"]: part["figures"] for part in report["parts"]}
    groups = parts["kernels"]["groups"]
    # Each type that can be computed with has its products.
    types = {kernel["tensor_type"] for kernel in json.loads(doctor("--json").stdout)["kernels"]} - {"F32 activations"}
    assert {f"products of {name}" for name in types} <= {group["name"] for group in groups}
    assert all(group["cases"] > 0 and group["wrong"] == 0 and 0 <= group["worst"] <= 1 for group in groups)
    assert parts["sequences"]["mixed_up"] == 0
    assert parts["sequences"]["preemptions"] > 0
    assert parts["sequences"]["prefix_hits"] > 0
    # A quick model fits into the caches.
    assert parts["speed"]["share_of_bandwidth"] is None
    assert parts["bandwidth"]["read"] > 0


def test_report_is_about_nobody_and_leaves_nothing(on_cpu):
    done, temporary = on_cpu
    for private in ("a-certain-person", str(ROOT), LOGIN):
        assert private not in done.stdout
    assert list(temporary.iterdir()) == []


def test_private_names_are_taken_out(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/ann")
    monkeypatch.setattr(socket, "gethostname", lambda: "ann-pc")
    told = {"a": ["/srv/ann/.cache/k", "/home/bob/x.so: no such file", 3, None], "b": "ann-pc: fault; mann-pc ann-pc2"}
    expected = {"a": ["~/.cache/k", "/home/<user>/x.so: no such file", 3, None], "b": "<host>: fault; mann-pc ann-pc2"}
    assert machine.scrubbed(told) == expected


# Ways in which a part's process may end without leaving its result in the folder that it is told.
DEATHS = {
    "killed by SIGABRT": "os.kill(os.getpid(), signal.SIGABRT)",
    "killed by SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV)",
    "left with exit code 3": "sys.exit(3)",
    "did not end in its time": "time.sleep(600)",
}


@pytest.mark.parametrize("how", DEATHS)
def test_death_of_a_part_is_its_verdict(how):
    """The verdict says what the part was doing, and what it printed last: what a driver says before it aborts."""
    code = f"""
import os, signal, sys, time
open(os.path.join(sys.argv[1], "watch"), "w").write("first case\\nsecond case\\n")
print("Memory access fault by GPU node-1", file=sys.stderr, flush=True)
{DEATHS[how]}
"""
    command = [sys.executable, "-c", code]
    found = run_part({"part": "kernels"}, 2.0 if "time" in how else 60.0, command=command)
    assert found.verdict == "FAILED"
    assert how in found.summary
    assert "during: second case" in found.summary
    assert found.details == ["Memory access fault by GPU node-1"]


def test_verdicts_before_a_death_are_kept(monkeypatch, tmp_path):
    """A driver that ends the process in one case takes no verdict of the groups before it along."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def kill_after_a_group(_):
        if any(b"\n" in file.read_bytes() for file in tmp_path.glob("*/groups")):
            for child in children(os.getpid()):
                if str(tmp_path) in Path(f"/proc/{child}/cmdline").read_text():
                    os.kill(child, signal.SIGABRT)

    job = {"part": "kernels", "device": "cpu", "on_gpu": False, "quick": True, "earlier": {}}
    found = run_part(job, 240.0, kill_after_a_group)
    assert found.verdict == "FAILED"
    assert "killed by SIGABRT, during: " in found.summary
    groups = found.figures["groups"]
    assert all(group["cases"] and not group["wrong"] for group in groups)
    cases = sum(group["cases"] for group in groups)
    assert found.details[-1] == f"{len(groups)} groups before it: {cases:,} cases, 0 wrong"


def test_parts_go_on_after_one_that_fails():
    asked = []

    def run(job, seconds, tell):
        asked.append(job["part"])
        if job["part"] == "devices":
            return outcome.Outcome("ok", "a GPU", figures={"usable": True, "decode_steps": "captured"})
        if job["part"] == "kernels":
            return outcome.Outcome("FAILED", "its process was killed by SIGABRT")
        return outcome.Outcome("ok", "fine", figures={"read": 1e9} if job["part"] == "bandwidth" else {})

    report = examine("gpu:1", quick=True, run=run)
    assert asked == list(PARTS)
    assert (report["verdict"], report["failed"]) == ("FAILED", ["kernels"])
    text = text_of(report)
    assert "FAILED    kernels against references: its process was killed by SIGABRT" in text
    assert text.endswith("FAILED: kernels")


def test_gpu_that_is_not_there():
    """Asked for, it is a failure; by itself the CPU is tested, and why is said."""

    def run(job, seconds, tell):
        if job["part"] == "devices":
            return outcome.Outcome("FAILED", "not usable: no driver", figures={"usable": False})
        return outcome.Outcome("ok", job["device"])

    report = examine("gpu", quick=True, run=run)
    assert report["failed"] == ["devices"]
    assert {part["verdict"] for part in report["parts"][1:]} == {"left out"}
    report = examine("auto", quick=True, run=run)
    assert (report["device"], report["verdict"]) == ("cpu", "ok")
    assert "no driver" in report["parts"][0]["summary"]
    assert {part["name"] for part in report["parts"] if part["verdict"] == "ok"} == ON_CPU


def test_a_graph_is_repeated_in_many_processes(monkeypatch, tmp_path):
    """A driver was wrong in one process of five: each is counted, with what it said."""
    seen = []
    job = outcome.Job("gpu", True, False, tmp_path, seen.append, lambda _: None, {})
    wrong = iter([None] * 17 + ["kernel 1 of 300"] * 2 + ["it ended with exit code -6 (fault)"])
    monkeypatch.setattr(replays, "_process", lambda device: next(wrong))
    assert replays.replays(job) == (
        3,
        [
            "a graph of 300 kernels, repeated 64 times in each of 20 processes: wrong in 3",
            "in 2 of 20 processes: kernel 1 of 300",
            "in 1 of 20 processes: it ended with exit code -6 (fault)",
        ],
    )
    assert seen[-1] == "a repeated graph, process 20 of 20"
    monkeypatch.setattr(replays, "_process", lambda device: None)
    differ, (line,) = replays.replays(job)
    assert (differ, line[-13:]) == (0, "wrong in none")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import json; print(json.dumps({'wrong': None}))", None),
        ("import json; print(json.dumps({'wrong': 'kernel 1 of 300'}))", "kernel 1 of 300"),
        ("import sys; print('a fault', file=sys.stderr); sys.exit(3)", "it ended with exit code 3 (a fault)"),
        ("import os; os.abort()", "it ended with exit code -6 ()"),
        ("import time; time.sleep(60)", "it did not end within 0.5 s"),
    ],
)
def test_a_process_that_repeats_a_graph(code, expected, monkeypatch):
    monkeypatch.setattr(replays, "CODE", code)
    if "sleep" in code:
        monkeypatch.setattr(replays, "SECONDS", 0.5)
    assert replays._process("gpu") == expected


def test_captured_steps_that_are_off_by_default_are_no_failure():
    faulty = "decode steps: op by op, slower (HIP 7.2 may repeat a step with numbers of the one before)"

    def run(job, seconds, tell):
        if job["part"] == "devices":
            return outcome.Outcome("ok", "a GPU", figures={"usable": True, "decode_steps": faulty})
        return found

    for figures in ({"differ": 3, "wrong_processes": 0}, {"differ": 0, "wrong_processes": 1}):
        found = outcome.Outcome("FAILED", "3 of 48 runs differ", figures={"runs": 48} | figures)
        (_, part) = examine("gpu", quick=True, only=["graphs"], run=run)["parts"]
        assert part["verdict"] == "left out"
        assert part["summary"] == f"{faulty}; captured all the same: 3 of 48 runs differ"
    # A part that died, or whose steps failed, has compared nothing.
    for summary, figures in {
        "its process was killed by SIGABRT, during: steps op by op": {"exit_code": -6, "during": "steps op by op"},
        "its process did not end in its time and was ended": {"exit_code": -9, "during": None},
        "DeviceError: hipMemcpy failed": {},
    }.items():
        found = outcome.Outcome("FAILED", summary, figures=figures)
        report = examine("gpu", quick=True, only=["graphs"], run=run)
        assert report["failed"] == ["graphs"]
        assert report["parts"][1]["summary"] == summary


def test_steps_that_cannot_be_captured_say_why(monkeypatch, tmp_path):
    """An engine may refuse to record them, whatever it is asked."""
    told = "a GPU; decode steps: op by op, slower (graphs of this driver read old numbers); batch-invariant"
    monkeypatch.setattr(graphs, "_run", lambda *_, **__: (told, []))
    monkeypatch.setattr(graphs, "replays", lambda _: (1, ["wrong in 1"]))
    found = graphs.graphs(outcome.Job("gpu", True, True, tmp_path, lambda _: None, lambda _: None, {}))
    assert found.verdict == "left out"
    assert found.summary.endswith("decode steps: op by op, slower (graphs of this driver read old numbers)")
    assert (found.details, found.figures) == (["wrong in 1"], {"wrong_processes": 1})


@needs_stand_in
@pytest.mark.deep
def test_faults_of_the_stand_in_driver(tmp_path):
    """A matrix library that crashes is reported with its signal, and kernels that no compiler makes in each part that
    needs them."""
    settings = {"HIPSIM_TARGET": "cpu-wave32", "HIPSIM_CXX": "/bin/false", "ROCMFORGE_CACHE_DIR": str(tmp_path)}
    settings |= {"ROCMFORGE_GPU_PLATFORM": "amd", "ROCMFORGE_GPU_LIBRARY": str(STAND_IN)}
    settings |= {"ROCMFORGE_VENDOR_BLAS": "1", "HIPSIM_BLASLT": "segfault"}
    parts = ["--part", "library", "--part", "launches", "--part", "kernels"]
    done = doctor("--test", "--quick", "--json", *parts, **settings)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["device"], report["failed"]) == ("gpu", ["devices", "kernels", "library", "launches"])
    found = {part["name"]: part for part in report["parts"]}
    assert "of kernels cannot be used" in found["devices"]["summary"]
    assert "does not compile" in found["kernels"]["summary"]
    tried = found["library"]["figures"]["tried"]
    assert len(tried) == 2
    assert all("signal 11" in item["problem"] for item in tried)


# Dies the way AMD's runtime does when a kernel uses memory that it may not.
ABORTS = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void start(void) {
  fprintf(stderr, "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Unknown.\\n");
  abort();
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("platform", [{"ROCMFORGE_GPU_PLATFORM": "amd"}, {}], ids=["AMD", "any platform"])
def test_driver_that_aborts_the_process(platform, tmp_path):
    """The report is whole: it says how the process died in which the driver was tried, and what the driver said."""
    source, library = tmp_path / "driver.c", tmp_path / "libamdhip64.so"
    source.write_text(ABORTS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    settings = {"ROCMFORGE_GPU_LIBRARY": str(library), "TMPDIR": str(tmp_path)}
    settings |= platform | {"ROCMFORGE_CACHE_DIR": str(tmp_path)}
    done = doctor(
        "--test", "--quick", "--json", "--device", "gpu", "--part", "kernels", "--part", "launches", **settings
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["failed"] == ["devices"]
    devices, *others = report["parts"]
    assert (
        "it was killed by signal 6 while opening its library (Memory access fault by GPU node-1" in devices["summary"]
    )
    assert {part["summary"] for part in others} == {"there is no usable GPU"}
    assert sorted(tmp_path.iterdir()) == [source, library, tmp_path / "verdicts"]


def test_ctrl_c_ends_the_part_that_runs(tmp_path):
    command = [sys.executable, "-m", "rocmforge", "doctor", "--test", "--device", "cpu"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not any(file.stat().st_size for file in tmp_path.glob("rocmforge-*/watch")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (child,) = children(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--quick"], "--test"),
        (["--tune", "--test"], "--tune comes without --test"),
        (["--tune", "--part", "speed"], "--tune comes without --test"),
        (["--tune", "--threads", "2"], "--threads"),
        (["--part", "speed"], "--test"),
        (["--test", "--part", "nonsense"], "no part nonsense: there are devices, kernels"),
        (["--test", "--threads", "2"], "--threads"),
    ],
)
def test_wrong_usage(arguments, problem):
    done = doctor(*arguments, COLUMNS="200")
    assert done.returncode == 2
    assert problem in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--test"], ["--test", "--json"], ["--json"]])
def test_names_that_are_no_device(arguments):
    """An error for any of its forms, by the argument and by the environment."""
    for more, settings in ((["--device", "gpu:x"], {}), ([], {"ROCMFORGE_DEVICE": "gpu:x"})):
        done = doctor(*arguments, *more, **settings)
        assert (done.returncode, done.stdout) == (1, "")
        assert "got gpu:x, expected auto, cpu, gpu, hip or rocm (AMD's), or cuda (NVIDIA's)" in done.stderr


@pytest.mark.parametrize(
    "shape", [made_up.Shape(2, 256, 512, 4, 2, 64, 768), made_up.Shape(3, 512, 256, 8, 8, 32, 256)]
)
def test_made_up_models_are_sound(shape, tmp_path):
    """Another implementation reads them alike: shapes, types, and weights that keep the size of products."""
    path = made_up.write(shape, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(path)
    assert reader.fields["llama.block_count"].contents() == shape.layers
    assert [(f"{name}.weight", rows * cols) for name, rows, cols, _ in shape.tensors()] == [
        (tensor.name, int(tensor.n_elements)) for tensor in reader.tensors
    ]
    assert made_up.num_bytes(shape) >= sum(int(tensor.n_bytes) for tensor in reader.tensors)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name.endswith("norm.weight"):
            assert 0.9 <= values.min() <= values.max() <= 1.1
        elif tensor.name != "token_embd.weight":
            assert 0.7 < np.sqrt(np.mean(values**2) * values.shape[-1]) < 1.4, tensor.name
    assert not any(stage["problems"] for stage in check_gguf(path))
    assert path.read_bytes() == made_up.write(shape, tmp_path / "again.gguf").read_bytes()


def test_part_ends_with_its_parent(tmp_path):
    """A test that is killed leaves no process behind that goes on computing."""
    code = "from rocmforge.cli.device_test import child, parts; import os, sys, time\n"
    code += "parts.PARTS['bandwidth'] = parts.Part('', lambda job: time.sleep(600), None, 1.0)\n"
    code += "print('started', flush=True); child.main()"
    fields = {"part": "bandwidth", "device": "cpu", "on_gpu": False, "quick": True, "earlier": {}}
    (tmp_path / "job.json").write_text(json.dumps(fields))
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"started\n"
        process.stdin.close()
        assert process.wait(60) == 1


def test_signals_are_named():
    found = run_part(
        {}, 60.0, command=[sys.executable, "-c", f"import os; os.kill(os.getpid(), {signal.SIGBUS.value})"]
    )
    assert found.summary == "its process was killed by SIGBUS"


def test_help_names_the_parts():
    part = next(option for option in typer.main.get_command(app).commands["doctor"].params if option.name == "part")
    assert part.help.endswith(f"Parts: {', '.join(PARTS)}.")


def test_guide_shows_the_report():
    """The example in docs/usage.md has the parts as they are called."""
    usage = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    assert all(f" {part.title}: " in usage for part in PARTS.values())
    template = (ROOT / ".github" / "ISSUE_TEMPLATE" / "gpu_report.yml").read_text(encoding="utf-8")
    assert "rocmforge doctor --test" in template
    assert Path(ROOT / "README.md").read_text(encoding="utf-8").count("rocmforge doctor --test") >= 1


TABLE = {
    "device": "gpu:0 (a card, gfx1100)",
    "tuned_as": "RDNA3 (estimated, not measured)",
    "numbers": [
        {"name": "gemv.blocks", "value": 1, "candidates": [1, 2, 4]},
        {"name": "matmul.splits", "value": 8, "candidates": [4, 8]},
        {"name": "attention.blocks", "value": 2, "candidates": [1, 2]},
    ],
}


def test_numbers_are_tried_one_after_the_other(monkeypatch):
    """A number that is faster stays while the next ones are tried; a gain of one percent is noise."""
    monkeypatch.setattr(tune._rocmforge, "device_tuning", lambda device: TABLE)
    seen = []

    def measure(load, numbers):
        seen.append((load.what, dict(numbers)))
        speed = 100.0 + 10 * (numbers.get("gemv.blocks") == 2) + 5 * (numbers.get("gemv.blocks") == 4)
        return speed + 1.0 * (numbers.get("matmul.splits") == 4) - 50 * (numbers.get("attention.blocks") == 1)

    found = tune.search("gpu", measure)
    assert (found.verdict, found.summary) == ("ok", "faster with ROCMFORGE_TUNING=gemv.blocks=2")
    assert found.figures["numbers"] == {"gemv.blocks": 2}
    assert [(row["name"], row["value"], row["best"]) for row in found.figures["rows"]] == [
        ("gemv.blocks", 1, 2),
        ("matmul.splits", 8, 8),
        ("attention.blocks", 2, 2),
    ]
    assert found.details[:2] == [
        "gpu:0 (a card, gfx1100), tuned as RDNA3 (estimated, not measured)",
        "gemv.blocks: 1 -> 2 (tok/s of one sequence with 1: 100.0, 2: 110.0, 4: 105.0)",
    ]
    assert seen[3:5] == [
        ("8 sequences", {"gemv.blocks": 2}),
        ("8 sequences", {"gemv.blocks": 2, "matmul.splits": 4}),
    ]
    found = tune.search("gpu", lambda load, numbers: 7.0)
    assert found.summary == "the numbers of the table are the best"


@pytest.mark.parametrize("name", ["gemv.blocks", "matmul.blocks", "attention.blocks"])
def test_speed_is_that_under_the_numbers(name, monkeypatch, tmp_path):
    """The engine reads them from the environment, which is as before afterwards; a CPU has none of them."""
    monkeypatch.setenv(tune.VARIABLE, "gemv.blocks=4")
    given = []
    llm = tune.LLM
    monkeypatch.setattr(tune, "LLM", lambda *a, **k: given.append(os.environ[tune.VARIABLE]) or llm(*a, **k))
    job = outcome.Job("cpu", False, True, tmp_path, lambda _: None, lambda _: None, {})
    model = made_up.write(tune.QUICK_MODEL, tmp_path / "model.gguf")
    assert tune._speed(job, model, tune.LOADS[name], f"{name}=2") > 0
    assert given == [f"{name}=2"]
    assert os.environ[tune.VARIABLE] == "gemv.blocks=4"


def test_report_of_numbers():
    def run(job, seconds, tell):
        assert (job["part"], job["device"], job["quick"]) == ("tune", "gpu:1", False)
        return outcome.Outcome("ok", "faster with ROCMFORGE_TUNING=gemv.blocks=2", ["gemv.blocks: 1 -> 2"])

    report = reports.tune("gpu:1", quick=False, run=run)
    assert (report["command"], report["verdict"]) == ("--tune", "ok")
    lines = text_of(report).splitlines()
    assert "doctor --tune (full)" in lines[0]
    assert any(line.startswith("ok        numbers of launches: faster with ROCMFORGE_TUNING") for line in lines)


@needs_stand_in
def test_every_number_of_a_gpu_has_a_load(tmp_path):
    """The stand-in's device lists them, with the ones that the environment gives."""
    settings = {"HIPSIM_TARGET": "cpu-wave32", "ROCMFORGE_GPU_PLATFORM": "amd", "ROCMFORGE_GPU_LIBRARY": str(STAND_IN)}
    settings |= {"ROCMFORGE_TUNING": "matmul.blocks_16=6", "ROCMFORGE_CACHE_DIR": str(tmp_path)}
    code = "import json; from rocmforge import _rocmforge; print(json.dumps(_rocmforge.device_tuning('gpu')))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | settings)
    numbers = {number["name"]: number for number in json.loads(done.stdout)["numbers"]}
    assert set(numbers) == set(tune.LOADS)
    assert numbers["matmul.blocks_16"]["value"] == 6
    assert all(len(number["candidates"]) > 1 for number in numbers.values())
    done = doctor(**settings | {"ROCMFORGE_TUNING": "gemv.blocks=0"})
    assert done.returncode == 1
    assert "ROCMFORGE_TUNING: got gemv.blocks=0, expected a list like gemv.blocks=2 of" in done.stderr
