"""Errors are typed, say what was got and what was expected, and leave nothing behind."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import rocmforge
from rocmforge import LLM, InvalidRequestError, ModelFileError, RocmForgeError, SamplingParams, Tokenizer

BASES = {
    "GrammarError": ValueError,
    "InvalidRequestError": ValueError,
    "ModelFileError": ValueError,
    "OutOfMemoryError": MemoryError,
    "DeviceError": RuntimeError,
    "EngineDeadError": RuntimeError,
    "QueueFullError": RuntimeError,
}


@pytest.mark.parametrize(("name", "base"), BASES.items())
def test_every_class_has_both_bases(name, base):
    error = getattr(rocmforge, name)
    assert issubclass(error, RocmForgeError)
    assert issubclass(error, base)


@pytest.mark.parametrize("open_model", [LLM, Tokenizer])
def test_missing_file_is_file_not_found(open_model, tmp_path):
    path = tmp_path / "no.gguf"
    with pytest.raises(FileNotFoundError) as caught:
        open_model(path)
    assert caught.value.filename == str(path)
    assert caught.value.errno == 2


@pytest.mark.parametrize("open_model", [LLM, Tokenizer])
@pytest.mark.parametrize("model", [None, 5, b"x\0y"])
def test_model_of_a_wrong_type_is_a_type_error(open_model, model):
    with pytest.raises((TypeError, ValueError)):
        open_model(model)


@pytest.mark.parametrize("open_model", [LLM, Tokenizer])
def test_folder_is_no_model(open_model, tmp_path):
    with pytest.raises((OSError, RocmForgeError)) as caught:
        open_model(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("open_model", [LLM, Tokenizer])
def test_other_file_is_a_model_file_error(open_model, tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("This is no model at all, only text that is long enough for a header.")
    with pytest.raises(ModelFileError, match=str(path)):
        open_model(path)


ARGUMENTS = [
    ("device", "tpu"),
    ("num_threads", 0),
    ("max_model_len", 0),
    ("max_num_seqs", 0),
    ("max_num_batched_tokens", 0),
    ("block_size", 0),
    ("block_size", -16),
    ("kv_cache_memory", -1),
    ("kv_cache_dtype", "f7"),
    ("compute_dtype", "f7"),
    ("kv_cache_dtype", "\ud800"),
    ("device", "\ud800"),
    ("retention", 10**400),
    ("max_queue_size", -1),
    ("max_num_partial_prefills", 0),
    ("max_long_partial_prefills", 0),
    ("max_long_partial_prefills", 5),
    ("long_prefill_token_threshold", 0),
    ("state_snapshot_interval", 0),
    ("speculative_config", {"method": "eagle"}),
    ("speculative_config", {"num_speculative_tokens": 0}),
    ("speculative_config", {"prompt_lookup_min": 9, "prompt_lookup_max": 8}),
    ("speculative_config", {"draft_model": "x"}),
    ("speculative_config", {"method": "draft_model"}),
    ("speculative_config", {"method": "ngram", "model": "x"}),
    ("retention", -1.0),
    ("retention", float("nan")),
    ("seed", -1),
]


@pytest.mark.parametrize(("argument", "value"), ARGUMENTS)
def test_bad_engine_arguments_are_named(argument, value, tiny_model):
    """S22, K9: engine arguments out of range are errors that name them."""
    with pytest.raises(InvalidRequestError, match=argument):
        LLM(tiny_model("quant_models/Q4_0"), **{argument: value})


@pytest.mark.parametrize(
    "argument", ["num_threads", "max_num_seqs", "block_size", "retention", "device", "speculative_config"]
)
def test_engine_arguments_of_wrong_type(argument, tiny_model):
    with pytest.raises(TypeError, match=argument):
        LLM(tiny_model("quant_models/Q4_0"), **{argument: [1]})


def test_malformed_files_are_typed_errors(bad_gguf):
    """L1, L4, L11: a typed error or, where that is allowed, a harmless load; never a panic, and in bounded time."""
    index = json.loads((bad_gguf / "index.json").read_text())
    seen = 0
    for path in sorted(bad_gguf.glob("*.gguf")):
        expected = index.get(path.name, {"expect": "safe"})["expect"]
        try:
            with LLM(path, max_num_seqs=1, num_threads=1) as llm:
                llm.generate([1, 2, 3], SamplingParams(max_tokens=2), progress=False)
        except RocmForgeError as error:
            assert str(error)
        else:
            assert expected != "reject", f"{path.name} was accepted"
        seen += 1
    assert seen > 100


@pytest.fixture(scope="module")
def llm(tiny_model):
    with LLM(tiny_model("quant_models/Q4_0"), max_model_len=128, num_threads=1) as engine:
        yield engine


BAD_PROMPTS = {
    "nothing": [],
    "unknown token": [1 << 20],
    "negative token": [-1],
    "negative token in an array": np.array([3, -1]),
    "too long": [3] * 129,
    "a lone surrogate": "a\ud800",
}


@pytest.mark.parametrize("prompt", BAD_PROMPTS.values(), ids=BAD_PROMPTS)
def test_prompts_that_cannot_be_served(llm, prompt, assert_nothing_left):
    """S18, S22: refused when submitted, and the engine goes on."""
    with pytest.raises(InvalidRequestError):
        llm.generate(prompt, progress=False)
    assert len(llm.generate([3], SamplingParams(max_tokens=2, ignore_eos=True), progress=False)) == 1
    assert_nothing_left(llm)


def test_one_bad_prompt_leaves_none_of_the_others_running(llm, assert_nothing_left):
    """K2: nothing of the call is left."""
    with pytest.raises(InvalidRequestError):
        llm.generate([[3], [4], [1 << 20]], SamplingParams(max_tokens=100, ignore_eos=True), progress=False)
    assert_nothing_left(llm)


@pytest.mark.parametrize(
    "prompt", [3.5, object(), [1.5], [None], [[3], 4.5], np.array([1.5]), np.array(3), {"a": 1}, b"ab"]
)
def test_prompts_of_wrong_types(llm, prompt, assert_nothing_left):
    with pytest.raises(TypeError):
        llm.generate(prompt, progress=False)
    assert_nothing_left(llm)


@pytest.mark.parametrize("prompt", [None, 5, b"ab", bytearray(b"ab"), {"text": "ab"}])
def test_what_is_no_prompt_is_named(llm, prompt):
    """Bytes would iterate as integers, and those would pass for token ids."""
    with pytest.raises(TypeError, match=r"prompts: got .*expected text, token ids"):
        llm.generate(prompt, progress=False)
    with pytest.raises(TypeError, match="expected token ids"):
        llm.detokenize(prompt if isinstance(prompt, bytes | bytearray) else 5)


@pytest.mark.parametrize("messages", [None, 5, "hi", b"hi", {"role": "user", "content": "hi"}, ["hi"], [5], [[5]]])
def test_what_is_no_conversation_is_named(llm, messages):
    with pytest.raises(TypeError, match=r"messages: got .*expected a list of"):
        llm.chat(messages, progress=False, chat_template="{{ messages }}")


@pytest.mark.parametrize("messages", [[], [[]], [{"content": "hi"}], [{"role": None}], [{"role": "user"}, {"role": 5}]])
def test_conversations_that_cannot_be_served(llm, messages):
    with pytest.raises(InvalidRequestError, match="messages: got"):
        llm.chat(messages, progress=False, chat_template="{{ messages }}")


@pytest.mark.parametrize("params", [5, {"n": 1}, "greedy"])
def test_params_of_wrong_types(llm, params):
    with pytest.raises(TypeError, match="SamplingParams"):
        llm.generate([3], params, progress=False)


def test_as_many_params_as_prompts(llm):
    with pytest.raises(InvalidRequestError, match="sampling_params"):
        llm.generate([[3], [4]], [SamplingParams()], progress=False)
    with pytest.raises(TypeError):
        llm.generate([3], {"temperature": 0}, progress=False)


def test_generation_writes_nothing_to_stderr(tiny_model):
    """S30: not one byte, neither from Rust nor from Python."""
    code = (
        "import sys; from rocmforge import LLM, SamplingParams\n"
        "with LLM(sys.argv[1], max_model_len=64) as llm: llm.generate([3], SamplingParams(max_tokens=16))"
    )
    command = [sys.executable, "-c", code, str(tiny_model("quant_models/Q4_0"))]
    done = subprocess.run(command, capture_output=True, check=True, env=os.environ)
    assert (done.stdout, done.stderr) == (b"", b"")


HELLO = [{"role": "user", "content": "Hello"}]
SURROGATES = {
    "tokenize": lambda llm: llm.tokenize("a\ud800"),
    "encode": lambda llm: llm.tokenizer.encode("a\ud800"),
    "prompt": lambda llm: llm.generate("a\ud800", progress=False),
    "long prompt": lambda llm: llm.generate("a\ud800" * 20_000, progress=False),
    "stop": lambda llm: llm.generate("a", SamplingParams(stop="\ud800"), progress=False),
    "output_kind": lambda llm: SamplingParams(output_kind="\ud800"),
    "chat_template": lambda llm: llm.chat(HELLO, chat_template="\ud800", progress=False),
    "chat_template_content_format": lambda llm: llm.apply_chat_template(HELLO, chat_template_content_format="\ud800"),
    "abort": lambda llm: llm._engine.abort("\ud800"),
    "record": lambda llm: llm.record("\ud800"),
    "cache_salt": lambda llm: llm.generate("a", cache_salt="\ud800", progress=False),
    "request_id": lambda llm: llm._engine.inbox().submit([3], SamplingParams(), request_id="\ud800"),
}


@pytest.mark.parametrize("use", SURROGATES)
def test_text_that_utf8_cannot_hold(llm, use, assert_nothing_left):
    """A8: JSON can spell a lone surrogate; wherever a text goes in, it is a request that cannot be served."""
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        SURROGATES[use](llm)
    assert_nothing_left(llm)


NUMBERS = {
    "priority": lambda llm: llm._engine.inbox().submit([3], SamplingParams(), priority=2**31),
    "timeout": lambda llm: llm._engine.inbox().submit([3], SamplingParams(), timeout=10**400),
    "token_id": lambda llm: llm.tokenizer.is_special(2**40),
    "temperature": lambda llm: SamplingParams(temperature=10**400),
    "logit_bias": lambda llm: SamplingParams(logit_bias={3: 10**400}),
    "stop_token_ids": lambda llm: SamplingParams(stop_token_ids=[2**40]),
    "ids": lambda llm: llm.detokenize([2**40]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_beyond_their_type(llm, name, assert_nothing_left):
    """A8: never an `OverflowError`."""
    with pytest.raises(InvalidRequestError, match=name):
        NUMBERS[name](llm)
    assert_nothing_left(llm)


def test_a_token_id_beyond_the_vocabulary_is_called_so(llm):
    """A20: in an array as in a list."""
    for ids in (np.array([2**40]), np.array([3, 2**31], dtype=np.int64)):
        with pytest.raises(InvalidRequestError, match=r"vocabulary|less than 512"):
            llm.generate(ids, progress=False)
    with pytest.raises(InvalidRequestError, match="not negative"):
        llm.generate(np.array([-1]), progress=False)
