"""Tests of the engine's warnings, which reach people through Python's `logging`."""

import logging
import os
import subprocess
import sys

import pytest
from conftest import ON_GPU
from rocmforge import LLM, InvalidRequestError, Tokenizer, set_log_level
from tiny_models import bpe_model, rewritten

MISSING = "tokenizer.ggml.pre is missing"


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory):
    """A model whose text may be split wrongly: the file does not say how."""
    return str(bpe_model(tmp_path_factory.mktemp("doubtful") / "model.gguf"))


def program(code, **environment):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_a_warning_is_shown_without_any_set_up(doubtful):
    done = program(f"import rocmforge; rocmforge.Tokenizer({doubtful!r})")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count(MISSING) == 1
    assert done.stderr.count("\n") == 1


def test_it_is_a_record_of_the_module_that_made_it(doubtful, caplog):
    Tokenizer(doubtful)
    [record] = [record for record in caplog.records if MISSING in record.getMessage()]
    assert (record.name, record.levelno) == ("rocmforge.tokenizer.bpe", logging.WARNING)
    assert doubtful in record.getMessage()


def test_levels_are_those_of_logging(doubtful, caplog):
    with caplog.at_level(logging.ERROR, logger="rocmforge"):
        Tokenizer(doubtful)
    assert caplog.records == []


@pytest.mark.skipif(ON_GPU, reason="hardware: there is a GPU")
def test_a_variable_shows_more(tiny_model):
    model = str(tiny_model("quant_models/Q4_0"))
    code = f"import rocmforge\nwith rocmforge.LLM({model!r}, max_num_seqs=1): pass"
    done = program(code, ROCMFORGE_LOG="info", ROCMFORGE_DEVICE="auto")
    assert done.returncode == 0
    assert " INFO rocmforge.devices: running on the CPU: " in done.stderr
    assert program(code, ROCMFORGE_DEVICE="auto").stderr == ""


def test_a_variable_turns_it_off(doubtful):
    done = program(f"import rocmforge; rocmforge.Tokenizer({doubtful!r})", ROCMFORGE_LOG="off")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_level_is_an_error(tiny_model, monkeypatch):
    monkeypatch.setenv("ROCMFORGE_LOG", "loud")
    with pytest.raises(
        InvalidRequestError, match="ROCMFORGE_LOG: got loud, expected 'debug', 'info', 'warning', 'error' or 'off'"
    ):
        LLM(tiny_model("quant_models/Q4_0"))


def test_the_function_goes_before_the_variable(tiny_model, doubtful):
    model = str(tiny_model("quant_models/Q4_0"))
    code = f"rocmforge.set_log_level('info')\nwith rocmforge.LLM({model!r}, max_num_seqs=1): pass"
    for settings in ({}, {"ROCMFORGE_LOG": "off"}):
        done = program(f"import rocmforge\n{code}", ROCMFORGE_DEVICE="auto", **settings)
        assert done.returncode == 0
        assert " INFO rocmforge." in done.stderr
    code = f"import rocmforge\nrocmforge.set_log_level('off')\nrocmforge.Tokenizer({doubtful!r})"
    done = program(code, ROCMFORGE_LOG="debug")
    assert (done.returncode, done.stderr) == (0, "")
    with pytest.raises(InvalidRequestError, match="level: got loud, expected 'debug', 'info', 'warning', 'error' or"):
        set_log_level("loud")


def command(*arguments, **environment):
    line = [sys.executable, "-m", "rocmforge", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_the_command_line_shows_what_its_option_says(tiny_model, tmp_path):
    """By default warnings in the form of its errors; the option goes before the variable; what is no level is told."""
    warning = "(all but chat works without it)"
    broken = {"tokenizer.chat_template": "{% nonsense %}"}
    model = str(rewritten(tiny_model("quant_models/Q4_0"), tmp_path / "model.gguf", extra=broken))
    generate = ("generate", "a", "-m", model, "-n", "1", "--device", "cpu")
    shown = command(*generate)
    assert shown.stderr.startswith("warning: ")
    assert warning in shown.stderr
    assert shown.stderr.count("\n") == 1
    for settings in ({}, {"ROCMFORGE_LOG": "off"}):
        done = command("--log-level", "info", *generate, **settings)
        assert " WARNING rocmforge.engine.load: " in done.stderr
        assert warning in done.stderr
    assert command("--log-level", "off", *generate, ROCMFORGE_LOG="debug").stderr == ""
    wrong = command("--log-level", "loud", *generate, COLUMNS="200")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "got loud, expected 'debug', 'info', 'warning', 'error' or 'off'" in wrong.stderr
    wrong = command(*generate, ROCMFORGE_LOG="loud")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("error: ROCMFORGE_LOG: got loud, expected")
    assert wrong.stderr.count("\n") == 1


def test_a_child_process_warns_as_its_parent_did(doubtful):
    code = (
        "import os, rocmforge\n"
        f"rocmforge.Tokenizer({doubtful!r})\n"
        "child = os.fork()\n"
        f"rocmforge.Tokenizer({doubtful!r})\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0"
    )
    done = program(code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(MISSING) == 3


def test_a_handler_that_fails_harms_nobody(doubtful):
    code = (
        "import logging, rocmforge\n"
        "class Bad(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        raise SystemError('no')\n"
        "logging.getLogger('rocmforge').addHandler(Bad())\n"
        "for _ in range(3):\n"
        f"    print(rocmforge.Tokenizer({doubtful!r}).vocab_size)"
    )
    done = program(code)
    assert (done.returncode, done.stdout) == (0, "258\n" * 3)


def test_a_program_that_ends_at_once_loses_nothing(doubtful):
    """The engine's threads may have something to say, too, while the interpreter ends."""
    code = (
        "import logging, threading, rocmforge\n"
        "logging.basicConfig(format='%(message)s')\n"
        "def load():\n"
        f"    rocmforge.Tokenizer({doubtful!r})\n"
        "threads = [threading.Thread(target=load) for _ in range(8)]\n"
        "for thread in threads: thread.start()"
    )
    done = program(code)
    assert done.returncode == 0
    assert done.stderr.count(MISSING) == 8
