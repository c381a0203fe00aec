"""The command line on standard streams that cannot take everything, and its warnings."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hub_server import hub_server
from tiny_models import bpe_model, rewritten

LATIN_1 = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}


def process(*arguments, environment=None, **kwargs):
    command = [sys.executable, "-m", "rocmforge", *map(str, arguments)]
    environment = os.environ | (environment or {})
    return subprocess.run(command, capture_output=True, check=False, env=environment, **kwargs)


@pytest.fixture(scope="module")
def odd(tiny_model, tmp_path_factory):
    """A file with a text beyond Latin-1 and numbers that JSON lacks in its metadata."""
    folder = tmp_path_factory.mktemp("odd")
    extra = {"test.nan": float("nan"), "test.inf": float("inf"), "test.minus": float("-inf")}
    return rewritten(
        tiny_model("quant_models/Q4_0"), folder / "odd.gguf", extra=extra, replace={"general.name": "日本 é 😀"}
    )


def test_metadata_that_json_cannot_hold_is_still_json(odd):
    """A19: the infinities and NaN are texts."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    for environment in ({}, LATIN_1):
        done = process("inspect", odd, "--json", environment=environment)
        assert done.returncode == 0, done.stderr
        metadata = json.loads(done.stdout.decode(), parse_constant=refuse)["metadata"]
        assert (metadata["test.nan"], metadata["test.inf"], metadata["test.minus"]) == ("NaN", "Infinity", "-Infinity")
        assert metadata["general.name"] == "日本 é 😀"


def test_text_beyond_the_locale_is_escaped(odd):
    """A19: and what the locale has stays as it is."""
    done = process("inspect", odd, environment=LATIN_1)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "'\\u65e5\\u672c é \\U0001f600'" in done.stdout.decode("latin-1")


def test_generated_text_beyond_the_locale_is_escaped(smollm2_path):
    """A19: no traceback in the middle of an answer."""
    # SmolLM2 repeats what it is shown.
    prompt = "日本日本日本日本日本日本日本日本"
    arguments = ["generate", prompt, "-m", smollm2_path, "-n", "8", "--temperature", "0"]
    known = process(*arguments)
    shown = process(*arguments, environment=LATIN_1)
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert shown.stdout.isascii()
    text = known.stdout.decode()
    assert not text.isascii()
    assert shown.stdout.decode().encode().decode("unicode_escape") == text


@pytest.mark.parametrize("arguments", [["--version"], ["doctor", "--help"], ["inspect"]])
def test_a_full_disk_is_one_line(odd, arguments):
    """A19: wherever the output is given up."""
    if arguments == ["inspect"]:
        arguments = [*arguments, odd]
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "rocmforge", *map(str, arguments)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_ctrl_c_while_packages_are_imported_is_no_traceback(tmp_path):
    """A19: a package stands in for the slow ones, and says when it is being imported."""
    marker = tmp_path / "importing"
    (tmp_path / "typer.py").write_text(
        f"import pathlib, time\npathlib.Path({str(marker)!r}).touch()\ntime.sleep(60)\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "rocmforge", "doctor"]
    # First of all, and beside what the package itself may have been installed by.
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert program.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=30) == (b"", b"")
    assert program.returncode in (130, -signal.SIGINT)


def test_a_text_in_another_encoding_is_named(odd, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes("Grüße".encode("latin-1"))
    done = process("perplexity", text, "-m", odd)
    assert done.returncode == 1
    assert b"not a text in UTF-8: byte 2 is 0xfc" in done.stderr


@pytest.fixture(scope="module")
def without_pre_tokenizer(tmp_path_factory):
    """Text may be split wrongly: the file does not say how."""
    folder = tmp_path_factory.mktemp("pre")
    return bpe_model(folder / "model.gguf")


def test_check_reports_what_a_load_would_warn_of(without_pre_tokenizer):
    report = json.loads(process("check", without_pre_tokenizer, "--json").stdout)
    stages = {stage["stage"]: stage for stage in report["stages"]}
    [warning] = stages["tokenizer"]["warnings"]
    assert "tokenizer.ggml.pre is missing" in warning
    shown = process("check", without_pre_tokenizer)
    assert b"        warning: " in shown.stdout
    assert b"tokenizer.ggml.pre is missing" in shown.stdout
    # Said once.
    assert shown.stderr == b""


@pytest.mark.parametrize("text", [b"Hello\n", b"Hello\r\n", b"\xef\xbb\xbfHello\n", b"\xef\xbb\xbfHello", b"Hello"])
def test_a_line_end_and_a_byte_order_mark_are_no_part_of_the_prompt(tiny_model, text):
    """F8: as PowerShell and editors write them."""
    done = process("generate", "-m", tiny_model("arch/llama_tied"), "-n", 1, "--json", input=text)
    assert json.loads(done.stdout)["prompt"] == "Hello"


def test_chat_takes_a_byte_order_mark_off_its_first_line(smollm2_path):
    """F8: and the carriage return off each line."""
    options = ("chat", "-m", smollm2_path, "-n", 4, "--temperature", 0)
    plain = process(*options, input=b"Hello\n")
    assert process(*options, input=b"\xef\xbb\xbfHello\r\n").stdout == plain.stdout


STEERS = re.compile("\x1b\\]|\x1b\\[2J|\x07|\u202e|\x9b")
STEERING = "\x1b]0;title\x07\x1b[2Jname\n\u202eWARNING\x9b1m"


def on_a_terminal(*arguments, **variables):
    """Returns the text that a command writes to a terminal, its standard output and error."""
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "rocmforge", *map(str, arguments)]
    environment = os.environ | variables
    with subprocess.Popen(
        command, stdout=follower, stderr=follower, stdin=subprocess.DEVNULL, env=environment
    ) as running:
        os.close(follower)
        written = b""
        # Linux says an input/output error at the end.
        with contextlib.suppress(OSError):
            while piece := os.read(leader, 1 << 16):
                written += piece
        os.close(leader)
        running.wait()
    return written.decode()


def test_texts_of_a_file_do_not_steer_the_terminal(tiny_model, tmp_path):
    """H12: titles, clipboards, cleared screens and forged lines are shown as escapes."""
    extra = {"general.description": STEERING, "tokenizer.chat_template": f"{{{{ raise_exception({STEERING!r}) }}}}"}
    source = tiny_model("quant_models/Q4_0")
    file = rewritten(source, tmp_path / "odd\x1b]0;x\x07\n.gguf", extra=extra, replace={"general.name": STEERING})
    for command in (
        ["inspect", file],
        ["check", file],
        ["generate", "--chat", "a", "-m", file, "-n", 1],
        ["inspect", tmp_path / "missing\x1b[2J.gguf"],
    ):
        written = on_a_terminal(*command)
        assert not STEERS.search(written), command
        # A file that is valid has no text that `check` would show.
        assert command[0] == "check" or "x1b" in written, command


def test_names_of_a_hub_do_not_steer_the_terminal(tmp_path):
    """H12: names that `pull` takes from the hub, and that `list` finds in its cache."""
    pytest.importorskip("huggingface_hub")
    odd = STEERING.replace("\n", "")
    names = [f"odd{odd}-{quant}.gguf" for quant in ("Q4_0", "other")]
    with hub_server(odd=dict.fromkeys(names, b"GGUF")) as hub:
        home = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url, "OLLAMA_MODELS": str(tmp_path / "ollama")}
        for command in (["pull", "hf:owner/odd"], ["pull", "hf:owner/odd:Q6_K"], ["list"]):
            written = on_a_terminal(*command, **home)
            assert not STEERS.search(written), command
            assert "x1b" in written, (command, written)


def test_models_of_a_server_do_not_steer_the_terminal():
    """H12: `launch` shows the names that a server tells."""
    can = {name: {"supported": False} for name in ("thinking", "effort", "image_input")}
    listed = {"id": STEERING, "capabilities": None, "max_input_tokens": 64}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_list = self.path == "/v1/models"
            body = json.dumps({"data": [listed]} if is_list else listed | {"capabilities": can}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        written = on_a_terminal("launch", "claude", "--url", url, "--print")
        refused = on_a_terminal("launch", "claude", "--url", url, "--print", "--served-model", "other")
        server.shutdown()
    assert "loading " in written
    assert "ANTHROPIC_MODEL=" in written
    assert "expected one of those that are served" in refused
    for text in (written, refused):
        assert not STEERS.search(text)
        assert "x1b" in text


def test_a_log_line_is_one_line():
    """H12, H22: a name with a line break forges no further line."""
    code = "import logging; from rocmforge import log; log.show(20)"
    code += "; logging.getLogger('rocmforge').info('%s', 'a\\nb\\x1b[2J')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("a\\nb\\x1b[2J\n")
