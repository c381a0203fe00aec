"""Tests of sampling without settings: requests take the file's advice, and on the command line none ends in a loop."""

import json
import re
import subprocess
import sys

import pytest
from rocmforge import LLM, SamplingParams
from rocmforge.cli.app import app
from rocmforge.cli.sampling import DEFAULTS
from tiny_models import rewritten, tiny_model
from typer.main import get_command

# Keys that llama.cpp's converter writes for Qwen's `generation_config.json`.
QWEN = {"temp": 0.6, "top_p": 0.95, "top_k": 20}
# Questions that people ask first; each answer has 256 tokens.
QUESTIONS = [
    "What is the capital of France?",
    "Hello",
    "Why is the sky blue?",
    "What is 2 + 2?",
]


@pytest.fixture(scope="module")
def recommending(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recommending")
    keys = {f"general.sampling.{name}": value for name, value in QWEN.items()}
    return rewritten(tiny_model("qwen3", folder), folder / "recommending.gguf", extra=keys)


def generated(*arguments):
    command = [sys.executable, "-m", "rocmforge", "generate", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_file_says_how_it_is_sampled(recommending, assert_nothing_left):
    with LLM(recommending, max_num_seqs=2, seed=3) as llm:
        expected = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
        assert llm.get_default_sampling_params() == expected
        assert llm.recommended_sampling() == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
        seeded = expected.replace(seed=1)
        [explicit] = llm.generate([[5, 6, 7]], seeded, progress=False)
        assert_nothing_left(llm)
    with LLM(recommending, max_num_seqs=2, seed=3) as first, LLM(recommending, max_num_seqs=2, seed=3) as second:
        [left_out] = first.generate([[5, 6, 7]], progress=False)
        [said] = second.generate([[5, 6, 7]], expected, progress=False)
        assert left_out.outputs[0].token_ids == said.outputs[0].token_ids
        assert len(explicit.outputs[0].token_ids) > 0


def test_a_file_without_advice_has_the_defaults_of_sampling_params(tiny_model):
    with LLM(tiny_model("quant_models/Q4_0"), max_num_seqs=1) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
        assert llm.recommended_sampling() == {}


def test_the_command_line_takes_the_files_advice_whole(recommending):
    """Settings that its makers left out are not mixed with the command's own defaults."""
    sampling = generated("ab", "-m", recommending, "-n", 2)["sampling"]
    assert {name: sampling[name] for name in ("temperature", "top_p", "top_k")} == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
    }
    assert (sampling["min_p"], sampling["repetition_penalty"]) == (0.0, 1.0)
    sampling = generated("ab", "-m", recommending, "-n", 2, "--top-k", 5, "--seed", 9)["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["seed"]) == (0.6, 5, 9)


def test_help_says_what_unset_options_come_to(tmp_path):
    """The help is compared for a file that recommends nothing, and for one that recommends something else."""
    bare = tiny_model("qwen3", tmp_path)
    other = rewritten(bare, tmp_path / "other.gguf", extra={"general.sampling.top_k": 20})
    of_bare, of_other = (generated("ab", "-m", model, "-n", 1)["sampling"] for model in (bare, other))
    options = {option.name: option.help for option in get_command(app).commands["generate"].params}
    unset = re.compile(
        r"Default: the model file's value, otherwise (\S+?)(?: \((\S+) if the file sets other parameters\))?\.$"
    )
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        nothing, neutral = unset.search(options[name]).groups()
        assert of_bare[name] == float(nothing), name
        assert of_other[name] == (20 if name == "top_k" else float(neutral or nothing)), name


def test_temperature_0_is_greedy_whatever_the_file_says(recommending):
    sampling = generated("ab", "-m", recommending, "-n", 2, "--temp", 0)["sampling"]
    del sampling["seed"]
    neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert sampling == neutral


def test_a_reported_seed_gives_the_same_text_again(recommending):
    first = generated("ab", "-m", recommending, "-n", 16, "--ignore-eos")
    again = generated("ab", "-m", recommending, "-n", 16, "--ignore-eos", "--seed", first["sampling"]["seed"])
    assert again["token_ids"] == first["token_ids"]


def repeated(ids, length=6):
    """The share of runs of `length` tokens that were there before."""
    runs = [tuple(ids[i : i + length]) for i in range(len(ids) - length + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def test_the_first_natural_questions_do_not_end_in_a_loop(smollm2_path, assert_nothing_left):
    """The command's own defaults prevent it; taking the likeliest token always repeats half of what it says here."""
    with LLM(smollm2_path, max_num_seqs=4, max_model_len=256) as llm:
        assert llm.recommended_sampling() == {}
        messages = [[{"role": "user", "content": question}] for question in QUESTIONS]
        params = [SamplingParams(max_tokens=128, seed=seed, **DEFAULTS) for seed in range(len(QUESTIONS))]
        outputs = llm.chat(messages, params, progress=False)
        shares = [repeated(output.outputs[0].token_ids) for output in outputs]
        assert max(shares) < 0.1, [output.outputs[0].text for output in outputs]
        assert_nothing_left(llm)
