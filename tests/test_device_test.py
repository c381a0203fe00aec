"""`rocmforge doctor --test`: what it reports, how it ends, and that a part that dies takes nothing with it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from rocmforge._rocmforge import check_gguf
from rocmforge.cli.device_test import graphs, machine, made_up, outcome
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
    assert parts["speed"]["share_of_bandwidth"] > 0
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


def test_compute_units_are_the_kernel_drivers(tmp_path):
    """The kernel's documentation of KFD says so: a processor has no SIMDs, a gfx90a has 4 in each of its 104 units."""
    nodes = {"0": "simd_count 0\nsimd_per_cu 0\ngfx_target_version 0\n", "1": "cpu_cores_count 0\nsimd_count 416\n"}
    nodes["1"] += "simd_per_cu 4\ngfx_target_version 90010\n"
    nodes["2"] = "simd_count 64\nsimd_per_cu 2\ngfx_target_version 110501\nlocation_id 49408 x\n"
    for node, properties in nodes.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(properties)
    assert machine.amd_nodes(tmp_path) == [
        "node 1 of the kernel driver: gfx90a, 104 compute units",
        "node 2 of the kernel driver: gfx1151, 32 compute units",
    ]
    assert machine.amd_nodes(tmp_path / "none") == []


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


def test_parts_go_on_after_one_that_fails():
    asked = []

    def run(job, seconds, tell):
        asked.append(job["part"])
        if job["part"] == "devices":
            return outcome.Outcome("ok", "a GPU", figures={"usable": True, "decode_steps": "recorded"})
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


def test_recorded_steps_that_are_off_by_default_are_no_failure():
    faulty = "decode steps: op by op, slower (HIP 7.2 may repeat a step with numbers of the one before)"

    def run(job, seconds, tell):
        if job["part"] == "devices":
            return outcome.Outcome("ok", "a GPU", figures={"usable": True, "decode_steps": faulty})
        return found

    found = outcome.Outcome("FAILED", "3 of 48 runs differ", figures={"runs": 48, "differ": 3})
    (_, part) = examine("gpu", quick=True, only=["graphs"], run=run)["parts"]
    assert part["verdict"] == "left out"
    assert part["summary"] == f"{faulty}; recorded all the same: 3 of 48 runs differ"
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


def test_steps_that_cannot_be_recorded_say_why(monkeypatch, tmp_path):
    """An engine may refuse to record them, whatever it is asked."""
    told = "a GPU; decode steps: op by op, slower (graphs of this driver read old numbers); batch-invariant"
    monkeypatch.setattr(graphs, "_run", lambda *_, **__: (told, []))
    found = graphs.graphs(outcome.Job("gpu", True, True, tmp_path, lambda _: None, {}))
    assert found.verdict == "left out"
    assert found.summary.endswith("decode steps: op by op, slower (graphs of this driver read old numbers)")


@needs_stand_in
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
def test_driver_that_aborts_the_process(tmp_path):
    """The report is whole: each part that met the driver says how it died, and what the driver said."""
    source, library = tmp_path / "driver.c", tmp_path / "libamdhip64.so"
    source.write_text(ABORTS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    settings = {"ROCMFORGE_GPU_PLATFORM": "amd", "ROCMFORGE_GPU_LIBRARY": str(library), "TMPDIR": str(tmp_path)}
    done = doctor("--test", "--quick", "--json", "--part", "kernels", "--part", "launches", **settings)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["failed"] == ["devices", "kernels", "launches"]
    for part in report["parts"]:
        assert part["summary"].startswith("its process was killed by SIGABRT"), part
        assert part["details"][0].startswith("Memory access fault by GPU node-1"), part
    assert sorted(tmp_path.iterdir()) == [source, library]


def test_ctrl_c_ends_the_part_that_runs(tmp_path):
    command = [sys.executable, "-m", "rocmforge", "doctor", "--test", "--device", "cpu"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not any(file.stat().st_size for file in tmp_path.glob("rocmforge-*/watch")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (child,) = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{child}").exists()


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--quick"], "--test"),
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


def test_guide_shows_the_report():
    """The example in docs/usage.md has the parts as they are called."""
    usage = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8")
    assert all(f" {part.title}: " in usage for part in PARTS.values())
    template = (ROOT / ".github" / "ISSUE_TEMPLATE" / "gpu_report.yml").read_text(encoding="utf-8")
    assert "rocmforge doctor --test" in template
    assert Path(ROOT / "README.md").read_text(encoding="utf-8").count("rocmforge doctor --test") >= 1
