"""The command line: what it prints, where, and how it exits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ON_GPU
from pictures import png
from rocmforge import LLM, SamplingParams, __version__, _rocmforge
from rocmforge.cli.app import app
from stand_in import STAND_IN, needs_stand_in
from typer.testing import CliRunner

runner = CliRunner()


@pytest.fixture(scope="module")
def model(tiny_model):
    return str(tiny_model("quant_models/Q4_0"))


def run(*arguments, **kwargs):
    return runner.invoke(app, [str(argument) for argument in arguments], **kwargs)


def process(*arguments, **kwargs):
    """Runs the program, with pipes for output."""
    command = [sys.executable, "-m", "rocmforge", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


def test_version_and_help():
    # A build carries kernels for some targets, or for none; it says so either way.
    kernels = ", ".join(_rocmforge.embedded_targets()) or "none embedded"
    assert (
        run("--version").stdout == process("--version").stdout == f"rocmforge {__version__} (AMD kernels: {kernels})\n"
    )
    shown = run("--help")
    assert shown.exit_code == 0
    for command in ("generate", "chat", "bench", "inspect", "check", "doctor", "perplexity"):
        assert command in shown.stdout
        assert run(command, "--help").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["generate", "--nonsense"],
        ["generate", "hi", "--max-tokens", "x"],
        ["generate", "hi", "-n", "-3"],
        ["generate", "hi", "-p", "ho"],
        ["inspect"],
        ["bench", "-p", "0"],
        ["bench", "-p", "a,b"],
        ["bench", "-b", "-1"],
        ["bench", "-b", "", "-p", ""],
    ],
)
def test_wrong_usage_exits_with_2(arguments):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "hi", "-m", "/no/such.gguf"], "No such file"),
        (["inspect", "/no/such.gguf"], "No such file"),
        (["perplexity", "/no/such.txt"], "No such file"),
        (["generate", "hi", "--temperature", "-1"], "temperature: got -1"),
        (["generate", "hi", "--device", "tpu"], "device: got tpu"),
        (["generate", "hi", "--speculative-config", '{"model": "/no/draft.gguf"}'], "/no/draft.gguf: No such file"),
    ],
)
def test_failure_exits_with_1_and_one_line(model, arguments, message):
    if "-m" not in arguments and "inspect" not in arguments:
        arguments = [*arguments, "-m", model]
    done = process(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_generate_prints_the_text_and_nothing_else(model):
    with LLM(model, max_num_seqs=1) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        expected = llm.generate("ab", params, progress=False)[0].outputs[0].text
    done = process("generate", "ab", "-m", model, "-n", 12, "--ignore-eos", "--temperature", 0)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected + "\n", "")
    piped = process("generate", "-m", model, "-n", 12, "--ignore-eos", "--temp", 0, input="ab")
    assert piped.stdout == expected + "\n"
    named = process("generate", "-p", "ab", "-m", model, "-n", 12, "--ignore-eos", "--temp", 0)
    assert named.stdout == expected + "\n"


def test_prompt_from_a_pipe_is_the_same_as_an_argument(model):
    """The line break that `echo` adds is no part of it."""
    whole = json.loads(process("generate", "-m", model, "-n", 1, "--json", input="ab\n\n").stdout)
    assert whole["prompt"] == "ab\n"


LATIN_1 = "é".encode("latin-1")
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


# Python's own streams refuse bytes that are no text, or let them through, by the locale and these settings.
OTHERS = [pytest.param({"PYTHONIOENCODING": name}, marks=pytest.mark.deep) for name in ("utf-8:strict", "latin-1")]


@pytest.mark.parametrize("stdio", [C_LOCALE, *OTHERS])
@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["chat", "--chat-template", os.devnull],
        ["generate", LATIN_1],
        ["generate", "a", "--stop", LATIN_1],
    ],
)
def test_text_that_is_not_utf8_is_one_line(model, arguments, stdio):
    command = [sys.executable, "-m", "rocmforge", *arguments, "-m", model, "-n", "2"]
    environment = os.environ | stdio
    done = subprocess.run(command, capture_output=True, input=LATIN_1 + b"\n", check=False, env=environment)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"error: ")
    assert b"UTF-8" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("locale", [{}, C_LOCALE])
def test_prompts_are_utf8_in_every_locale(model, locale):
    for arguments, text in ((["é日"], None), ([], "é日".encode())):
        command = [sys.executable, "-m", "rocmforge", "generate", *arguments, "-m", model, "-n", "1", "--json"]
        done = subprocess.run(command, capture_output=True, input=text, check=True, env=os.environ | locale)
        assert json.loads(done.stdout)["prompt"] == "é日"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_traceback(model, closed):
    # An empty input is an empty prompt, which this model's begin token makes a valid one.
    prompt = "" if "<&-" in closed else "ab"
    command = f"{sys.executable} -m rocmforge generate {prompt} -m {model} -n 2 {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_generate_takes_the_text_in_one_piece_or_what_is_new(model, monkeypatch):
    """The command prints one output with --json; without it, no output repeats what was printed."""
    stream, texts = LLM.stream, []

    def counting(*arguments):
        for output in stream(*arguments):
            texts.append(output.outputs[0].text)
            yield output

    monkeypatch.setattr(LLM, "stream", counting)
    arguments = ("generate", "ab", "-m", model, "-n", 12, "--ignore-eos", "--temperature", 0)
    whole = json.loads(run(*arguments, "--json").stdout)["text"]
    assert texts == [whole]
    texts.clear()
    assert run(*arguments).stdout == f"{whole}\n"
    assert "".join(texts) == whole


def test_generate_json(model):
    done = process("generate", "ab", "-m", model, "-n", 12, "--ignore-eos", "--json", "--seed", 3)
    report = json.loads(done.stdout)
    assert report["model"] == model
    assert report["prompt"] == "ab"
    assert report["completion_tokens"] == len(report["token_ids"]) == 12
    assert report["finish_reason"] == "length"
    assert report["metrics"]["total_time"] > 0


def test_generate_sees_images(vision_model, tmp_path):
    """The answer is that of the chat, and a file that is none is said in a line."""
    file = tmp_path / "a.png"
    file.write_bytes(png())
    options = ("-m", vision_model("qwen25vl"), "-n", 6, "--temperature", 0, "-t", 1)
    found = json.loads(run("generate", "hi", "--image", file, "--image", file, *options, "--json").stdout)
    with LLM(vision_model("qwen25vl"), num_threads=1) as llm:
        parts = [{"type": "image", "image": file}, {"type": "image", "image": file}, {"type": "text", "text": "hi"}]
        params = SamplingParams(max_tokens=6, temperature=0.0)
        (expected,) = llm.chat([{"role": "user", "content": parts}], params, progress=False)
    assert found["token_ids"] == expected.outputs[0].token_ids
    assert found["prompt_tokens"] == len(expected.prompt_token_ids)
    missing = run("generate", "hi", "--image", tmp_path / "b.png", *options)
    assert (missing.exit_code, missing.stderr) == (1, f"error: {tmp_path / 'b.png'}: No such file or directory\n")
    blind = run("generate", "hi", "--image", file, *options, "--mmproj", "none")
    assert blind.exit_code == 1
    assert "accepts only text" in blind.stderr


def test_generate_with_a_draft_model(model):
    arguments = ("generate", "ab", "-m", model, "-n", 40, "--ignore-eos", "--json", "--temperature", 0)
    plain, drafting = (
        json.loads(process(*arguments, *more).stdout)["token_ids"]
        for more in ((), ("--speculative-config", json.dumps({"model": model})))
    )
    assert drafting == plain
    assert len(plain) == 40


def test_generate_uses_the_demo_model_and_says_so(smollm2_path):
    done = process("generate", "--chat", "What is the capital of Japan?", "-n", 24, "--temperature", 0)
    assert "Tokyo" in done.stdout
    assert done.stderr == f"model: {smollm2_path} (no --model given: the demo model)\n"


def test_a_text_that_ends_at_once_is_said(smollm2_path):
    """A question that is not asked through the chat template may end there, and an empty line explains nothing."""
    question = ("What is the capital of France?", "-m", smollm2_path, "-n", 8, "--temperature", 0)
    done = process("generate", *question)
    said = "the model ended its text at once; --chat asks it as a chat would\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", said)
    # Neither of the user's limits is the model's end.
    assert process("generate", *question, "--ignore-eos", "-n", 1).stderr == ""


def test_without_any_model_the_error_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCMFORGE_CACHE_DIR", str(tmp_path))
    done = run("generate", "hi")
    assert done.exit_code == 1
    assert done.stderr.endswith(": rocmforge pull demo\n")


def test_reader_that_leaves_is_no_traceback(model):
    done = subprocess.run(
        f"{sys.executable} -m rocmforge inspect {model} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_doctor_lists_a_kernel_for_every_type():
    report = json.loads(run("doctor", "--json").stdout)
    assert report["version"] == __version__
    assert report["embedded_targets"] == _rocmforge.embedded_targets()
    types = {kernel["tensor_type"] for kernel in report["kernels"]}
    assert {
        "F32",
        "F16",
        "BF16",
        "Q4_0",
        "Q4_1",
        "Q8_0",
        "Q4_K",
        "Q6_K",
        "IQ4_XS",
        "MXFP4",
        "TQ1_0",
        "NVFP4",
        "Q1_0",
    } <= types
    assert [device["name"] for device in report["devices"]] == ["cpu", "gpu"]
    assert ("not usable" in report["devices"][1]["detail"]) != ON_GPU
    flags = Path("/proc/cpuinfo").read_text().split()
    # The kernel's names for what it spells differently.
    names = {"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}
    if report["architecture"] == "x86_64":
        for feature, available in report["cpu_features"].items():
            assert available == (names.get(feature, feature) in flags), feature
    assert run("doctor").exit_code == 0


@pytest.mark.skipif(ON_GPU, reason="hardware: there is a GPU")
def test_doctor_without_a_gpu_says_that_the_cpu_serves():
    report = json.loads(run("doctor", "--json").stdout)
    assert (report["device"], report["takes"]) == ("auto", "cpu")
    assert list(report["devices"][1]) == ["name", "detail"]
    shown = run("doctor").stdout
    assert 'device="auto" takes: cpu\n' in shown
    assert "device gpu: not usable: " in shown
    assert "Q4_K\tlinear\t" in shown


def doctor_on_the_stand_in(*options):
    """Runs `doctor` on a device whose driver is sim/hipsim, without a compiler."""
    settings = {"ROCMFORGE_GPU_PLATFORM": "amd", "ROCMFORGE_GPU_LIBRARY": str(STAND_IN)}
    settings |= {"HIPSIM_TARGET": "gfx1100", "HIPSIM_CLANG": "/bin/false", "ROCMFORGE_DEVICE": "auto"}
    done = process("doctor", *options, env=os.environ | settings)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_stand_in
def test_doctor_lists_the_kernels_of_a_gpu():
    """It names, per tensor type and op, the kernel and how it was compiled; the Rust tests say that it is true."""
    report = json.loads(doctor_on_the_stand_in("--json"))
    assert report["takes"] == "gpu"
    gpu = report["devices"][1]
    rows = {(row["tensor_type"], row["op"]): row for row in gpu["kernels"]}
    assert {name for name, _ in rows if name} == {kernel["tensor_type"] for kernel in report["kernels"]} - {
        "F32 activations"
    }
    shown = doctor_on_the_stand_in().splitlines()
    assert gpu["tuned_as"] == "RDNA3 (estimated, not measured)"
    assert "tuned as: RDNA3 (estimated, not measured)" in shown
    if rows["Q4_K", "product of 1 row"]["problem"] is not None:
        assert {row["code"] for row in rows.values()} == {None}
        assert any("none of its kernels can be used: " in line or "NOT USABLE: " in line for line in shown)
        pytest.skip("the wheel carries no code for AMD GPUs: it was built without a compiler for them")
    assert {row["code"] for row in rows.values()} == {"embedded for gfx1100"}
    lines = [
        "tensor type\tembedding rows\tdequantise\tproduct of 1 row\tproduct of more rows\tgate and up of few rows"
        "\tproducts of experts' rows\tgate and up of experts' rows\tcode",
        "Q4_K\tembed_q4_k\tdequantize_q4_k\tgemv_q4_k\tmatmul_q4_k_{n8,n16,n32,n64} (WMMA)"
        "\tmatmul_gated_q4_k_{n8,n16,n32,n64} (WMMA)"
        "\tmatmul_experts_q4_k_{n16,n64} (WMMA)\tmatmul_gated_experts_q4_k_{n16,n64} (WMMA)\tembedded for gfx1100",
        "IQ1_M\tembed_iq1_m\tdequantize_iq1_m\tgemv_iq1_m\tmatmul_iq1_m_{n8,n16,n32,n64} (WMMA)"
        "\tmatmul_gated_iq1_m_{n8,n16,n32,n64} (WMMA)"
        "\tmatmul_experts_iq1_m_{n16,n64} (WMMA)\tmatmul_gated_experts_iq1_m_{n16,n64} (WMMA)\tembedded for gfx1100",
        "F32\tembed_f32\tdequantize_f32\tgemv_f32\tgemv_f32\tgemv_f32\tgemv_f32\tgemv_f32\tembedded for gfx1100",
        "product of 1 row, Q4_K with Q6_K\tgemv_q4_k_q6_k\tembedded for gfx1100",
        "product of few rows, Q4_K with Q6_K\tmatmul_q4_k_q6_k_{n8,n16,n32,n64} (WMMA)\tembedded for gfx1100",
        "RoPE and store in the KV cache\trope_store_{f16,f32,int8}\tembedded for gfx1100",
        "top-k\ttop_k\tembedded for gfx1100",
        "matrix library of the vendor: not used: the driver was given by its path",
        "decode steps: captured and replayed",
    ]
    assert set(lines) <= set(shown)


def test_doctor_of_a_model_says_where_it_runs(model):
    report = json.loads(run("doctor", "-m", model, "--json").stdout)
    assert ("CPU" in report["model"]["runs_on"]) != ON_GPU
    assert report["model"]["config"]["block_size"] == 16


def test_perplexity_of_the_fixed_text(smollm2_path, golden_json, tmp_path):
    """Against llama.cpp's figure for the same text, model and window."""
    golden = golden_json("smollm2.json")["perplexity"]
    text = tmp_path / "text.txt"
    text.write_text(golden["text"], encoding="utf-8")
    done = process("perplexity", text, "-m", smollm2_path, "--context", 1024, "--json")
    report = json.loads(done.stdout)
    assert report["tokens"] == len(golden["ids"]) - 1
    assert report["nll"] == pytest.approx(float(golden["mean_nll_llamacpp"]), rel=0.005)


def test_the_types_of_the_kv_cache_and_of_products_are_options(model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 4, encoding="utf-8")
    nll = {}
    for dtype in ("f16", "int8", "int4"):
        done = run("perplexity", text, "-m", model, "--device", "cpu", "--kv-cache-dtype", dtype, "--json")
        nll[dtype] = json.loads(done.stdout)["nll"]
    assert nll["int8"] != nll["f16"]
    assert nll["int8"] == pytest.approx(nll["f16"], rel=0.01)
    assert nll["int4"] not in (nll["f16"], nll["int8"])
    assert nll["int4"] == pytest.approx(nll["f16"], rel=0.1)
    done = run("generate", "a", "-m", model, "--kv-cache-dtype", "q8_0")
    assert done.exit_code == 1
    assert "got q8_0, expected 'f16', 'f32', 'int8' or 'int4'" in done.stderr
    done = run("generate", "a", "-m", model, "--device", "cpu", "--compute-dtype", "fp8")
    assert done.exit_code == 1
    assert "compute_dtype: got fp8, expected 'auto' on the CPU" in done.stderr


def test_a_byte_order_mark_is_no_part_of_a_text(model, tmp_path):
    """F8: an editor may have put it before the text."""
    reports = []
    for encoding in ("utf-8", "utf-8-sig"):
        text = tmp_path / encoding
        text.write_text("The quick brown fox.", encoding=encoding)
        reports.append(json.loads(run("perplexity", text, "-m", model, "--json").stdout))
    assert reports[0] == reports[1]


def test_perplexity_needs_two_tokens(model, tmp_path):
    text = tmp_path / "empty.txt"
    text.write_text("")
    done = run("perplexity", text, "-m", model)
    assert done.exit_code == 1
    assert "too few" in done.stderr


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_on_a_terminal_the_device_is_said(model):
    """Never a silent choice: a person is told what it runs on."""
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "rocmforge", "generate", "ab", "-m", model, "-n", "2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=follower, check=True)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert ("CPU" in shown) != ON_GPU
    assert done.stdout


@pytest.mark.parametrize("options", [["--chat"], ["--system", "Be brief."]])
def test_a_chat_without_a_template_names_the_options(model, options):
    """An error of the command line has no names of Python's arguments."""
    done = run("generate", "a", "-m", model, "-n", 1, *options)
    assert done.exit_code == 1
    assert "without --chat, --system and --image, or give a template with --chat-template FILE" in done.stderr
    assert "chat_template" not in done.stderr
