"""Tests of which GPU is used, and where its driver is looked for: on the stand-in driver, in processes of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rocmforge import _rocmforge
from rocmforge.cli.device_test import machine
from rocmforge.cli.device_test.outcome import Job
from stand_in import STAND_IN, needs_stand_in

pytestmark = needs_stand_in
TWO = {"HIPSIM_TARGET": "gfx1102,gfx1100", "HIPSIM_INTEGRATED": "0"}
LISTED = "gpu:0 (hipsim gfx1102, gfx1102, 1.1 GB, integrated), gpu:1 (hipsim gfx1100, gfx1100, 1.1 GB)"
# The variables that decide where drivers are looked for, and which.
DECIDES = ("ROCMFORGE_", "HIP", "ROC", "HSA_", "GPU_DEVICE", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_")


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(DECIDES)}
    # No compiler: nothing here runs a kernel.
    environment |= {"HIPSIM_CLANG": "/bin/false"} | TWO | settings
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def doctor(*options: str, **settings: str):
    done = run("-m", "rocmforge", "doctor", "--json", *options, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def error_of(device: str, model: str, **settings: str) -> str:
    code = (
        "import sys, rocmforge\n"
        "try:\n    rocmforge.LLM(sys.argv[1], device=sys.argv[2])\n"
        "except rocmforge.DeviceError as error:\n    print(error)"
    )
    done = run("-c", code, model, device, **{"ROCMFORGE_GPU_LIBRARY": str(STAND_IN)} | settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def model(tiny_model) -> str:
    return str(tiny_model("quant_models/Q4_0"))


def test_an_index_out_of_range_lists_the_devices(model) -> None:
    assert f"there is no device 2; there are {LISTED}" in error_of("gpu:2", model)
    assert f"there is no device 9; there are {LISTED}" in error_of("rocm:9", model)


def test_the_library_may_be_an_argument(model) -> None:
    """The argument goes before the variable."""
    code = (
        "import sys, rocmforge\n"
        "try:\n    rocmforge.LLM(sys.argv[1], device='gpu:2', gpu_library=sys.argv[2], gpu_platform='amd')\n"
        "except rocmforge.DeviceError as error:\n    print(error)"
    )
    settings = {"ROCMFORGE_GPU_LIBRARY": "/nowhere.so", "ROCMFORGE_GPU_PLATFORM": "nvidia"}
    done = run("-c", code, model, str(STAND_IN), **settings)
    assert f"there is no device 2; there are {LISTED}" in done.stdout, done.stderr


def test_an_alias_is_of_one_platform(model) -> None:
    error = error_of("cuda", model)
    assert f"found instead, of platform amd: {LISTED}" in error
    assert "not CUDA" in error
    for name in ("hip:9", "rocm:9", "gpu:9"):
        assert f"there is no device 9; there are {LISTED}" in error_of(name, model)


def test_the_command_line_takes_an_index(model) -> None:
    settings = {"ROCMFORGE_GPU_LIBRARY": str(STAND_IN)}
    for arguments, more in ((["--device", "gpu:2"], {}), ([], {"ROCMFORGE_DEVICE": "gpu:2"})):
        done = run("-m", "rocmforge", "generate", "hi", "-m", model, *arguments, **settings | more)
        assert done.returncode == 1
        assert LISTED in done.stderr


def test_a_card_is_preferred_to_a_part_of_the_processor() -> None:
    report = doctor(ROCMFORGE_GPU_LIBRARY=str(STAND_IN))
    amd = [gpu for gpu in report["gpus"] if gpu["platform"] == "amd"]
    assert [(gpu["device"], gpu["arch"], gpu["integrated"], gpu["taken"]) for gpu in amd] == [
        ("gpu:0", "gfx1102", True, False),
        ("gpu:1", "gfx1100", False, True),
    ]
    assert report["devices"][1]["detail"].startswith("hipsim gfx1100 (gfx1100, ")
    drivers = {driver["platform"]: driver for driver in report["gpu_drivers"]}
    assert drivers["amd"] == {"platform": "amd", "library": str(STAND_IN), "problem": None}
    shown = run("-m", "rocmforge", "doctor", ROCMFORGE_GPU_LIBRARY=str(STAND_IN)).stdout
    assert 'GPU gpu:1 of amd: hipsim gfx1100 (gfx1100, 1.07 GB), which device="auto" takes\n' in shown
    assert "GPU gpu:0 of amd: hipsim gfx1102 (gfx1102, 1.07 GB, integrated)\n" in shown
    assert f"driver for amd: {STAND_IN}\n" in shown


def test_the_card_with_most_memory_is_taken() -> None:
    settings = {
        "HIPSIM_TARGET": "gfx1100,gfx1101,gfx1102",
        "HIPSIM_INTEGRATED": "",
        "HIPSIM_MEMORY_MB": "512,2048,1024",
    }
    report = doctor(ROCMFORGE_GPU_LIBRARY=str(STAND_IN), ROCMFORGE_GPU_PLATFORM="amd", **settings)
    assert [(gpu["arch"], gpu["memory"] >> 20, gpu["taken"]) for gpu in report["gpus"]] == [
        ("gfx1100", 512, False),
        ("gfx1101", 2048, True),
        ("gfx1102", 1024, False),
    ]


def test_doctor_tells_of_the_system_around_the_gpus() -> None:
    """A card that is driven as another one is what nobody remembers to say."""
    hidden = {"ROCR_VISIBLE_DEVICES": "", "HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    library = {"ROCMFORGE_GPU_LIBRARY": str(STAND_IN), "ROCMFORGE_GPU_PLATFORM": "amd"}
    done = run("-m", "rocmforge", "doctor", **library, **hidden)
    lines = done.stdout.splitlines()
    assert any(line.startswith(f"kernel {os.uname().release}") for line in lines), done.stdout
    assert any(line.startswith("device files: ") and "/dev/kfd" in line for line in lines)
    assert any('ROCR_VISIBLE_DEVICES=""' in line for line in lines)
    assert any(line.startswith("HSA_OVERRIDE_GFX_VERSION=10.3.0: ") and "as gfx1030" in line for line in lines)
    assert doctor(**library | {"ROCMFORGE_GPU_PLATFORM": "nvidia"})["system"] == []
    assert doctor("--device", "cpu", **library)["system"] == []


def test_a_library_without_a_device_is_not_one_to_install(model) -> None:
    """The commonest failure of the first hour: the library is there, and its permission or its kernel driver is not."""
    error = error_of("rocm", model, HIPSIM_TARGET="none")
    assert f"{STAND_IN}: it finds no device: " in error
    assert "hipErrorNoDevice" in error
    assert "rocm-hip-runtime" not in error


def crashing(way: str, tmp_path: Path, **settings: str) -> dict[str, str]:
    """The variables of a driver that fails so, with a cache of its own."""
    library = {"ROCMFORGE_GPU_LIBRARY": str(STAND_IN), "ROCMFORGE_GPU_PLATFORM": "amd"}
    return library | {"HIPSIM_FAULT": way, "ROCMFORGE_CACHE_DIR": str(tmp_path), "HIPSIM_TARGET": "gfx1100"} | settings


CRASHES = {
    "hipInit:segfault": "it was killed by signal 11 while opening a device",
    "hipInit:exit": "its process ended with status 1 while opening a device",
    "hipMalloc:abort": "it was killed by signal 6 while taking device memory",
    "hipModuleLoadData:segfault": "it was killed by signal 11 while loading code",
    "hipModuleLaunchKernel:segfault": "it was killed by signal 11 while running kernels that read the host's memory",
    "hipModuleLaunchKernel:nothing": "kernels read old numbers from page-locked memory (kernel 1 of 300",
}


# Each of these starts ten processes: one that dies at the driver's first call, and one that gives wrong results.
WAYS = ("hipInit:segfault", "hipModuleLaunchKernel:nothing")


@pytest.mark.parametrize("way", [pytest.param(way, marks=[] if way in WAYS else [pytest.mark.deep]) for way in CRASHES])
def test_a_driver_that_crashes_kills_nobody(way: str, tmp_path: Path, model) -> None:
    """It is tested in a separate process, once; `auto` then runs on the CPU and says why, `gpu` is an error."""
    if "Module" in way and "gfx1100" not in _rocmforge.embedded_targets():
        pytest.skip("no code for AMD GPUs in this build")
    settings = crashing(way, tmp_path)
    code = (
        "import sys, rocmforge\n"
        "rocmforge.set_log_level('info')\n"
        "with rocmforge.LLM(sys.argv[1]) as llm:\n"
        "    print(llm.describe())"
    )
    done = run("-c", code, model, **settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("CPU"), done.stdout
    assert "running on the CPU: " in done.stderr
    assert CRASHES[way] in done.stderr
    assert CRASHES[way] in error_of("gpu", model, **settings)
    (verdict,) = (tmp_path / "verdicts").iterdir()
    assert verdict.stat().st_mode & 0o777 == 0o600
    # It is remembered: a driver that would work now is not asked again, but by `doctor`.
    mended = settings | {"HIPSIM_FAULT": ""}
    assert CRASHES[way] in error_of("gpu", model, **mended)
    report = doctor(**settings)
    assert report["takes"] == "cpu"
    assert CRASHES[way] in report["devices"][1]["detail"]
    assert CRASHES[way] in report["gpu_drivers"][0]["problem"]
    assert doctor(**mended)["takes"] == "gpu"
    assert error_of("gpu:7", model, **mended).startswith("device gpu: there is no device 7")


@pytest.mark.deep
def test_a_driver_that_hangs_is_tried_again(tmp_path: Path, model) -> None:
    """A cold disk may be why it took too long, so the next process tries it again."""
    settings = crashing("hipInit:hang", tmp_path)
    assert "it did not end within 20 s while opening a device" in error_of("gpu", model, **settings)
    assert not list((tmp_path / "verdicts").glob("*.bin"))
    mended = settings | {"HIPSIM_FAULT": ""}
    assert error_of("gpu:7", model, **mended).startswith("device gpu: there is no device 7")


def test_a_verdict_is_of_one_library_and_one_choice_of_devices(tmp_path: Path, model) -> None:
    settings = crashing("hipMalloc:abort", tmp_path)
    assert "killed by signal 6" in error_of("gpu", model, **settings)
    mended = settings | {"HIPSIM_FAULT": ""}
    copy = tmp_path / "libamdhip64.so"
    shutil.copy(STAND_IN, copy)
    for other in ({"ROCMFORGE_GPU_LIBRARY": str(copy)}, {"HIP_VISIBLE_DEVICES": "0"}):
        assert "killed by signal" not in error_of("gpu:7", model, **mended | other)
    # A file that somebody else left there is no verdict.
    for file in (tmp_path / "verdicts").iterdir():
        file.write_bytes(b"good")
    assert "killed by signal 6" in error_of("gpu", model, **settings)


def test_a_call_that_fails_is_no_crash(tmp_path: Path, model) -> None:
    """It fails here too, which says more about it; nothing is remembered."""
    error = error_of("gpu", model, **crashing("hipInit:fail", tmp_path))
    assert "hipInit failed with 1" in error
    assert "separate process" not in error
    assert not list((tmp_path / "verdicts").glob("*.bin"))


def test_doctor_shows_the_device_that_is_named() -> None:
    """`--device` goes before `ROCMFORGE_DEVICE`, and neither is passed over."""
    library = {"ROCMFORGE_GPU_LIBRARY": str(STAND_IN), "ROCMFORGE_GPU_PLATFORM": "amd"}
    shown = run("-m", "rocmforge", "doctor", "--device", "gpu:0", ROCMFORGE_DEVICE="gpu:1", **library).stdout
    assert "device gpu: hipsim gfx1102 (gfx1102, " in shown
    assert 'GPU gpu:0 of amd: hipsim gfx1102 (gfx1102, 1.07 GB, integrated), which device="gpu:0" takes\n' in shown
    assert "GPU gpu:1 of amd: hipsim gfx1100 (gfx1100, 1.07 GB)\n" in shown
    assert 'device="gpu:0" takes: gpu\n' in shown
    for options, more in ((["--device", "gpu:2"], {}), ([], {"ROCMFORGE_DEVICE": "gpu:2"})):
        report = doctor(*options, **library | more)
        assert LISTED in report["devices"][1]["detail"]
        assert (report["device"], report["takes"]) == (["auto", *options][-1], "none")
        assert not any(gpu["taken"] for gpu in report["gpus"])


def test_doctor_of_the_cpu_opens_no_driver() -> None:
    """A driver that ends its process can thus be passed by."""
    report = doctor("--device", "cpu", ROCMFORGE_GPU_LIBRARY=str(STAND_IN))
    assert (report["gpus"], report["gpu_drivers"], report["takes"]) == ([], [], "cpu")
    assert report["devices"][1] == {"name": "gpu", "detail": "not looked for: the CPU is asked for"}
    assert report["kernels"]


def test_the_part_of_devices_tests_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It leaves the environment of its process as it was."""
    for name, value in (TWO | {"HIPSIM_CLANG": "/bin/false", "ROCMFORGE_DEVICE": "gpu:1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROCMFORGE_GPU_LIBRARY", str(STAND_IN))
    monkeypatch.setenv("ROCMFORGE_GPU_PLATFORM", "amd")
    before = dict(os.environ)
    found = machine.devices(Job("gpu:0", True, True, tmp_path, lambda _: None, lambda _: None, {}))
    assert found.summary.startswith("hipsim gfx1102 (gfx1102, ")
    system = found.figures["system"]
    assert system[0].startswith("kernel ")
    assert found.details[: len(system) + 3] == [
        *system,
        f"driver for amd: {STAND_IN}",
        "GPU gpu:0 of amd: hipsim gfx1102 (gfx1102, 1.07 GB, integrated), tested",
        "GPU gpu:1 of amd: hipsim gfx1100 (gfx1100, 1.07 GB)",
    ]
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        ("home/lib/libamdhip64.so.8", {"ROCM_PATH": "home"}),
        pytest.param("home/lib64/libamdhip64.so.6", {"ROCM_PATH": "home"}, marks=pytest.mark.deep),
        ("site-packages/_rocm_sdk_core/lib/libamdhip64.so.7", {"PYTHONPATH": "site-packages"}),
        pytest.param("site-packages/torch/lib/libamdhip64.so", {"PYTHONPATH": "site-packages"}, marks=pytest.mark.deep),
    ],
)
def test_the_driver_is_found_where_it_is_installed(tmp_path: Path, file: str, setting: dict[str, str]) -> None:
    """ROCm 10, ROCm 6 without the loader's knowledge, and the Python packages of ROCm and of PyTorch."""
    installed = tmp_path / file
    installed.parent.mkdir(parents=True)
    shutil.copy(STAND_IN, installed)
    settings = {name: str(tmp_path / folder) for name, folder in setting.items()}
    report = doctor(**settings, ROCMFORGE_GPU_PLATFORM="amd")
    assert report["gpu_drivers"] == [{"platform": "amd", "library": str(installed), "problem": None}]
    # A folder of the path that is not one of packages is none to take libraries from.
    if "PYTHONPATH" in settings:
        (tmp_path / "site-packages").rename(tmp_path / "downloads")
        driver = doctor(PYTHONPATH=str(tmp_path / "downloads"), ROCMFORGE_GPU_PLATFORM="amd")["gpu_drivers"][0]
        assert driver["library"] is None or not driver["library"].startswith(str(tmp_path))


def test_an_error_names_what_was_tried(tmp_path: Path, model) -> None:
    broken = tmp_path / "lib" / "libamdhip64.so.8"
    broken.parent.mkdir()
    broken.write_bytes(b"no library")
    error = error_of("rocm", model, ROCMFORGE_GPU_LIBRARY="", ROCM_PATH=str(tmp_path))
    if not error:
        pytest.skip("hardware: there is an AMD GPU")
    assert f"{broken} (file too short)" in error
    assert ", libamdhip64.so.8, .7, .6, .5 not found, looked into" in error
    assert f"looked into {broken.parent}" in error
    assert "install rocm-hip-runtime, or set ROCMFORGE_GPU_LIBRARY" in error


def ask_helper(job: object) -> subprocess.CompletedProcess[bytes]:
    """Asks a helper for work that may crash: an interpreter as the engine starts it."""
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('rocmforge._rocmforge', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print('beside the answer', flush=True)\n"
        "module.run_helper()"
    )
    command = [sys.executable, "-I", "-S", "-c", code, _rocmforge.__file__]
    return subprocess.run(command, input=json.dumps(job).encode(), capture_output=True, check=False)


def test_the_interpreter_does_what_may_crash() -> None:
    """The module loads without the package and its dependencies, and its answer is told from what others print."""
    job = {"marker": "MARK", "kind": "compile", "platform": "amd", "library": str(STAND_IN), "unit": "rows"}
    done = ask_helper(job | {"options": []})
    answer = done.stdout.partition(b"MARK")[2]
    assert done.returncode == 0
    assert done.stdout.startswith(b"beside the answer\n")
    # The length of the text, the text, and that it is an error.
    assert int.from_bytes(answer[:8], "little") == len(answer) - 9
    assert b"no --offload-arch among the options" in answer
    assert answer.endswith(b"-")
    # The helper dies, since hipRTC ends its process on a GPU that it does not know.
    assert ask_helper(job | {"options": ["--offload-arch=gfx9999"]}).returncode == -signal.SIGABRT
    assert b"a job of kind" in ask_helper({"marker": "MARK", "kind": "nonsense"}).stdout
