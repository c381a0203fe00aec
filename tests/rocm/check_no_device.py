"""The engine on AMD's real libraries where there is no GPU."""

import subprocess
from pathlib import Path

import pytest
from userland import RELEASES, interpreter, library, run

pytestmark = pytest.mark.skipif(Path("/dev/kfd").exists(), reason="hardware: this machine has a GPU")

DOCTOR = """
import runpy, sys
sys.executable = sys.argv.pop(1)
runpy.run_module("rocmforge", run_name="__main__")
"""
ENGINE = """
import sys
sys.executable, model = sys.argv[1:]
import rocmforge
try:
    rocmforge.LLM(model, device="gpu")
except rocmforge.DeviceError as error:
    print(error)
with rocmforge.LLM(model, device="auto") as llm:
    print(llm.describe())
"""
# Runs its arguments with a /dev of their own, whose /dev/kfd nobody may open: root has no capabilities there.
FORBIDDEN = """
set -e
mkdir "$1/dev"
mount --rbind /dev "$1/dev"
mount -t tmpfs none /dev
for name in null zero random urandom; do
    touch /dev/$name
    mount --bind "$1/dev/$name" /dev/$name
done
touch /dev/kfd
chmod 0 /dev/kfd
shift
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"""


@pytest.fixture(params=RELEASES)
def release(request) -> str:
    return request.param


def output(release: str, place: Path, code: str, *arguments: str, within: tuple[str, ...] = ()) -> str:
    settings = {"ROCMFORGE_GPU_LIBRARY": str(driver(release)), "ROCMFORGE_CACHE_DIR": str(place)}
    done = run(release, "-c", code, interpreter(release, place), *arguments, within=within, **settings)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def driver(release: str) -> Path:
    return library(release, f"libamdhip64.so.{release}")


def test_doctor_says_that_the_library_finds_no_device(release: str, tmp_path: Path) -> None:
    said = output(release, tmp_path, DOCTOR, "doctor")
    (line,) = [line for line in said.splitlines() if line.startswith("driver for amd: none")]
    assert f"{driver(release)}: it finds no device: " in line
    assert "hipInit failed with 100 (hipErrorNoDevice: no ROCm-capable device is detected)" in line
    assert 'device="auto" takes: cpu' in said


def test_doctor_says_that_the_device_file_is_forbidden(release: str, tmp_path: Path) -> None:
    within = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", FORBIDDEN, "sh", str(tmp_path))
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine forbids user namespaces")
    (tmp_path / "dev").rmdir()
    said = output(release, tmp_path, DOCTOR, "doctor", within=within)
    assert "device files: /dev/kfd is denied" in said
    (line,) = [line for line in said.splitlines() if line.startswith("driver for amd: none")]
    assert "hipInit failed with 100 (hipErrorNoDevice" in line
    assert "/dev/kfd is root's alone" in line


def test_an_engine_for_gpus_says_so_and_auto_takes_the_cpu(release: str, tmp_path: Path, tiny_model) -> None:
    said = output(release, tmp_path, ENGINE, str(tiny_model("quant_models/Q4_0")))
    error, *described = said.splitlines()
    assert "no usable GPU (amd: " in error
    assert "hipErrorNoDevice" in error
    assert described[0].startswith("CPU, ")
