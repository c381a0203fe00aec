"""`rocmforge.inspect`, `check` and `doctor`: reports as classes; and the command line, which has nothing else."""

import dataclasses
import json
import platform
import re

import pytest
import rocmforge
from rocmforge import CheckReport, DoctorReport, InvalidRequestError, ModelFileError, ModelInfo, diagnose, reports
from rust_source import ROOT

import gguf


def test_inspect_shows_what_a_file_holds(model):
    info = rocmforge.inspect(model)
    assert isinstance(info, ModelInfo)
    reader = gguf.GGUFReader(model)
    assert info.version == 3
    assert info.metadata["general.architecture"] == "llama"
    shown = [(tensor.name, tensor.shape, tensor.type, tensor.bytes) for tensor in info.tensors]
    assert shown == [(t.name, t.shape.tolist(), t.tensor_type.name, t.n_bytes) for t in reader.tensors]
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.version = 4


def test_inspect_raises_for_what_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError):
        rocmforge.inspect(tmp_path / "none.gguf")
    other = tmp_path / "other.gguf"
    other.write_bytes(b"something else")
    with pytest.raises(ModelFileError):
        rocmforge.inspect(other)


def test_check_tells_of_every_stage(model):
    report = rocmforge.check(model)
    assert isinstance(report, CheckReport)
    assert report.valid
    assert [stage.stage for stage in report.stages] == [
        "file",
        "architecture",
        "tokenizer",
        "chat template",
        "sampling",
        "values",
    ]


def test_check_reports_problems_and_raises_nothing(bad_gguf):
    index = json.loads((bad_gguf / "index.json").read_text())
    name = next(name for name, about in sorted(index.items()) if about["expect"] == "reject")
    report = rocmforge.check(bad_gguf / name)
    assert not report.valid
    (problem,) = (problem for stage in report.stages for problem in stage.problems)
    assert isinstance(problem, reports.ProblemReport)
    assert issubclass(getattr(rocmforge, problem.error), rocmforge.RocmForgeError)
    assert problem.message


def test_doctor_of_the_cpu():
    report = rocmforge.doctor(device="cpu", num_threads=1)
    assert isinstance(report, DoctorReport)
    assert (report.device, report.takes, report.gpus, report.gpu_drivers) == ("cpu", "cpu", [], [])
    assert report.embedded_targets == diagnose.embedded_targets()
    assert [type(device) for device in report.devices] == [reports.DeviceReport] * 2
    assert {"Q4_K", "F32"} <= {row.tensor_type for row in report.kernels}


def test_check_of_a_missing_file_is_a_problem_too(tmp_path):
    (stage,) = rocmforge.check(tmp_path / "none.gguf").stages
    assert [problem.error for problem in stage.problems] == ["FileNotFoundError"]


def test_what_progress_raises_ends_the_check(smollm2_path):
    def stop(done, total):
        assert 0 <= done <= total
        raise KeyError(total)

    with pytest.raises(KeyError):
        rocmforge.check(smollm2_path, progress=stop)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_doctor_lists_the_kernels_of_the_instruction_set_that_is_asked_for(how, monkeypatch):
    slowest = "neon" if platform.machine() == "aarch64" else "scalar"
    if how == "environment":
        monkeypatch.setenv("ROCMFORGE_CPU_ISA", slowest)
    report = rocmforge.doctor(device="cpu", **({"cpu_isa": slowest} if how == "argument" else {}))
    assert report.devices[0].detail == f"instruction set in use: {slowest}"
    assert report.kernels[0].kernel == slowest
    assert {row.kernel for row in report.kernels} <= {slowest, "scalar-dequantise"}


def test_doctor_takes_the_settings_of_an_engine():
    with pytest.raises(InvalidRequestError, match="device"):
        rocmforge.doctor(device="toaster")
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        rocmforge.doctor(nonsense=1)
    with pytest.raises(TypeError, match="batch_invariant"):
        rocmforge.doctor(device="cpu", batch_invariant="yes")
    with pytest.raises(InvalidRequestError, match=r"CPU instruction set.*abacus"):
        rocmforge.doctor(device="cpu", cpu_isa="abacus")


def test_the_command_line_uses_only_what_is_public():
    files = list((ROOT / "python" / "rocmforge" / "cli").rglob("*.py"))
    assert len(files) > 20
    private = {
        str(file): re.findall(r"_rocmforge\b|\b(?:llm|rocmforge|diagnose)\._\w+", file.read_text()) for file in files
    }
    assert not {file: names for file, names in private.items() if names}
