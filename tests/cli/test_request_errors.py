"""A request that ends with finish reason `error` is a failure of the command, or of the part of `doctor --test`, that
made it: nothing is measured or compared of it."""

from pathlib import Path

import numpy as np
import pytest
from rocmforge import LLM, RocmForgeError, SamplingParams
from rocmforge.cli.app import app
from rocmforge.cli.device_test import graphs, made_up, sequences, speeds
from rocmforge.cli.device_test.outcome import Job
from typer.testing import CliRunner

import gguf

runner = CliRunner()
write_sound = made_up.write


def damaged(path: Path) -> Path:
    """A copy whose last norm holds no numbers: every logit is none, and each request fails by itself."""
    (norm,) = (tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "output_norm.weight")
    data = bytearray(path.read_bytes())
    start = int(norm.data_offset)
    data[start : start + int(norm.n_bytes)] = np.full(int(norm.n_elements), np.nan, "<f4").tobytes()
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def failing(tiny_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("failing") / "failing.gguf"
    path.write_bytes(tiny_model("quant_models/Q4_0").read_bytes())
    return damaged(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "-p", "8", "-b", "", "-r", "1", "--json"],
        ["bench", "-p", "", "-b", "2", "-n", "2", "-r", "1", "--json"],
        ["perplexity", "{text}", "--context", "8", "--json"],
        ["generate", "ab", "-n", "2", "--json"],
    ],
    ids=["prompt_speed", "decode_speed", "perplexity", "generate"],
)
def test_commands_say_that_a_request_failed(failing, tmp_path, arguments, assert_nothing_left):
    text = tmp_path / "text.txt"
    text.write_text("ab" * 30)
    done = runner.invoke(app, [argument.format(text=text) for argument in [*arguments, "-m", str(failing)]])
    assert (done.exit_code, done.stdout) == (1, "")
    with LLM(failing, max_num_seqs=1) as llm:
        (output,) = llm.generate([5], SamplingParams(max_tokens=1), progress=False)
        assert output.outputs[0].finish_reason == "error"
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in done.stderr
        assert_nothing_left(llm)


@pytest.mark.parametrize("part", [graphs.graphs, sequences.sequences, speeds.speed], ids=lambda part: part.__name__)
def test_parts_of_a_device_whose_steps_fail_do_not_pass(part, monkeypatch, tmp_path):
    """Both ways of computing give nothing there, which is no agreement; the time to fail is no speed."""
    # The parts set these for their own process.
    monkeypatch.setenv("ROCMFORGE_GRAPHS", "")
    monkeypatch.setenv("ROCMFORGE_BATCH_INVARIANT", "")
    monkeypatch.setattr(made_up, "write", lambda shape, path: damaged(write_sound(shape, path)))
    with pytest.raises(RocmForgeError) as caught:
        part(Job("cpu", False, True, tmp_path, lambda _: None, lambda _: None, {}))
    # The engine says the same of a single request.
    monkeypatch.undo()
    with LLM(next(tmp_path.glob("*.gguf")), device="cpu", max_model_len=64, max_num_seqs=1) as llm:
        (output,) = llm.generate([5], SamplingParams(max_tokens=1), progress=False)
    assert str(caught.value) == output.outputs[0].error
