"""Guessed tokens: the same texts with and without, counts that add up, and errors that say what was expected."""

import json
import re

import pytest
from rocmforge import LLM, AsyncLLM, InvalidRequestError, ModelFileError, SamplingParams, StructuredOutputsParams

NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 8, "prompt_lookup_min": 3}
CODE = """\
def total(prices, rate):
    result = 0.0
    for price in prices:
        result += price * rate
    return result


def longest(words):
    result = ""
    for word in words:
        if len(word) > len(result):
            result = word
    return result
"""
PROMPT = f"Here is a file.\n```python\n{CODE}```\nHere is the same file once more.\n```python\ndef total("


@pytest.fixture(scope="module")
def pair(smollm2_path):
    """An engine without draft tokens, and one with."""
    settings = {"max_model_len": 1024, "max_num_seqs": 8, "num_threads": 2}
    with LLM(smollm2_path, **settings) as plain, LLM(smollm2_path, **settings, speculative_config=NGRAM) as drafting:
        yield plain, drafting


def texts(llm, prompts, params):
    outputs = llm.generate(prompts, params, progress=False)
    return [[(one.token_ids, one.text, one.finish_reason, one.stop_reason) for one in out.outputs] for out in outputs]


def assert_same(plain, drafting, settings):
    """Each draft token is computed for a step that verifies it, and texts are the same with and without."""
    params = SamplingParams(**{"max_tokens": 60, "ignore_eos": True, **settings})
    prompts = [list(range(3, 3 + length)) for length in (2, 40, 75)]
    # The second time the prompts are in the prefix cache.
    for _ in range(2):
        assert texts(drafting, prompts, params) == texts(plain, prompts, params)
    stats = drafting.stats()
    assert_counts(stats)
    assert stats.spec_decode_num_draft_tokens == stats.spec_decode_num_proposed_tokens > 0


def leave_in_the_middle(llm):
    for _ in range(3):
        for output in llm.stream([5, 6, 7], SamplingParams(max_tokens=100, ignore_eos=True)):
            if len(output.outputs[0].token_ids) > 8:
                break


def assert_counts(stats):
    drafts, right = stats.spec_decode_num_draft_tokens, stats.spec_decode_num_accepted_tokens
    assert stats.spec_decode_num_drafts <= drafts <= stats.spec_decode_num_proposed_tokens
    assert right <= drafts
    per_place = stats.spec_decode_num_accepted_tokens_per_pos
    assert sum(per_place) == right
    assert list(per_place) == sorted(per_place, reverse=True)
    assert len(per_place) <= 8


def test_a_repeated_file_takes_fewer_steps(pair, assert_nothing_left):
    plain, drafting = pair
    params = SamplingParams(max_tokens=160, temperature=0.0, ignore_eos=True)
    before = drafting.stats()
    # The times of steps are learnt first.
    for _ in range(2):
        assert texts(drafting, [PROMPT], params) == texts(plain, [PROMPT], params)
    stats = drafting.stats()
    assert_counts(stats)
    right = stats.spec_decode_num_accepted_tokens - before.spec_decode_num_accepted_tokens
    assert right > 100
    # Each step brings the token after the drafts that were right.
    steps = stats.engine_steps - before.engine_steps
    assert steps + right == pytest.approx(2 * 160, abs=6)
    assert plain.stats().spec_decode_num_proposed_tokens == 0
    assert plain.stats().spec_decode_num_accepted_tokens_per_pos == ()
    assert_nothing_left(drafting)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "seed": 3},
        pytest.param({"temperature": 0.3, "seed": 3, "n": 3}, marks=pytest.mark.deep),
        {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "seed": 1},
        {"temperature": 0.0, "repetition_penalty": 1.05, "frequency_penalty": 0.1},
        {"temperature": 0.0, "logit_bias": {198: 2.0}, "min_tokens": 40},
        {"temperature": 0.0, "stop": ["result +="]},
        {"temperature": 0.0, "stop": ["def longest"], "include_stop_str_in_output": True},
        {"temperature": 0.0, "stop": ["len(", "word"], "min_tokens": 30},
        pytest.param({"temperature": 0.0, "ignore_eos": False, "max_tokens": 300}, marks=pytest.mark.deep),
        {"temperature": 0.0, "max_tokens": 7},
        {"temperature": 0.0, "structured_outputs": StructuredOutputsParams(regex="(prices|words|, ){8}")},
    ],
    ids=str,
)
def test_texts_are_the_same(pair, settings, assert_nothing_left):
    """S14: settings count each token that was accepted, and no other."""
    params = SamplingParams(**{"max_tokens": 80, "ignore_eos": True, **settings})
    plain, drafting = pair
    prompts = [PROMPT, PROMPT[:200], "One, two, three. One, two, three. One,"]
    assert texts(drafting, prompts, params) == texts(plain, prompts, params)
    assert_counts(drafting.stats())
    assert_nothing_left(drafting)


def test_log_probabilities_are_the_same(pair, assert_nothing_left):
    plain, drafting = pair
    params = SamplingParams(max_tokens=60, temperature=0.0, logprobs=3, prompt_logprobs=1, ignore_eos=True)
    (with_drafts,), (without,) = (llm.generate([PROMPT], params, progress=False) for llm in (drafting, plain))
    assert with_drafts.prompt_logprobs == without.prompt_logprobs
    assert with_drafts.outputs[0].logprobs == without.outputs[0].logprobs
    assert with_drafts.outputs[0].cumulative_logprob == without.outputs[0].cumulative_logprob
    assert_nothing_left(drafting)


def test_a_stream_has_every_token(pair, assert_nothing_left):
    plain, drafting = pair
    params = SamplingParams(max_tokens=100, temperature=0.0, output_kind="delta", ignore_eos=True)

    def pieces(llm):
        return [output.outputs[0] for output in llm.stream(PROMPT, params)]

    ours, theirs = pieces(drafting), pieces(plain)
    assert [token for one in ours for token in one.token_ids] == [token for one in theirs for token in one.token_ids]
    assert "".join(one.text for one in ours) == "".join(one.text for one in theirs)
    # The consumer leaves in the middle.
    for output in drafting.stream(PROMPT, params):
        if len(output.outputs[0].token_ids) > 0:
            break
    assert_nothing_left(drafting)


def test_the_settings_are_resolved(tiny_model):
    model = tiny_model("quant_models/Q4_0")
    with LLM(model, max_model_len=64) as llm:
        assert llm.config()["speculative_config"] is None
    with LLM(model, max_model_len=64, speculative_config={}) as llm:
        assert llm.config()["speculative_config"] == NGRAM
    with LLM(model, max_model_len=64, speculative_config={"prompt_lookup_max": 2}) as llm:
        assert llm.config()["speculative_config"] == NGRAM | {"prompt_lookup_max": 2, "prompt_lookup_min": 2}


def test_the_variable_stands_in_for_the_argument(tiny_model, monkeypatch):
    model = tiny_model("quant_models/Q4_0")
    monkeypatch.setenv("ROCMFORGE_SPECULATIVE_CONFIG", json.dumps({"num_speculative_tokens": 3}))
    with LLM(model, max_model_len=64) as llm:
        assert llm.config()["speculative_config"] == NGRAM | {"num_speculative_tokens": 3}
    with LLM(model, max_model_len=64, speculative_config={"method": "ngram"}) as llm:
        assert llm.config()["speculative_config"] == NGRAM
    monkeypatch.setenv("ROCMFORGE_SPECULATIVE_CONFIG", "ngram")
    with pytest.raises(InvalidRequestError, match="ROCMFORGE_SPECULATIVE_CONFIG: got ngram"):
        LLM(model, max_model_len=64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "eagle"}, "speculative_config.method: got eagle, expected 'ngram', 'mtp' or 'draft_model'"),
        (
            {"method": "mtp", "prompt_lookup_max": 4},
            "speculative_config.prompt_lookup_max: got 4, expected nothing, since",
        ),
        ({"method": "mtp"}, "speculative_config.method: got mtp, expected a file with a NextN block"),
        ({"name": "x"}, "speculative_config: got name, expected a JSON object with some of method, model, num_spec"),
        ({"method": "mtp", "model": "x"}, "speculative_config.model: got x, expected nothing, since the method 'mtp'"),
        ({"method": "draft_model"}, "speculative_config.model: got nothing, expected the path of the draft model's"),
        ({"num_speculative_tokens": 65}, "speculative_config.num_speculative_tokens: got 65, expected 1 to 64"),
        ({"num_speculative_tokens": 1.5}, "got 1.5, expected an integer"),
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_min: got 5, expected 1 to 4"),
    ],
)
def test_wrong_settings_are_named(tiny_model, config, message):
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        LLM(tiny_model("quant_models/Q4_0"), speculative_config=config)


MTP = {"method": "mtp", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def mtp_pair(tiny_model):
    """An engine without draft tokens, and one whose model drafts by itself."""
    settings = {"max_model_len": 192, "max_num_seqs": 4, "max_num_batched_tokens": 32, "num_threads": 1}
    file = tiny_model("arch/qwen35_mtp")
    with LLM(file, **settings) as plain, LLM(file, **settings, speculative_config=MTP) as drafting:
        yield plain, drafting


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 3, "n": 3},
        {"temperature": 0.0, "frequency_penalty": 0.2, "logprobs": 2},
        {"temperature": 0.7, "seed": 5, "top_k": 20, "min_tokens": 10, "ignore_eos": False},
    ],
    ids=str,
)
def test_a_model_that_drafts_says_the_same(mtp_pair, settings, assert_nothing_left):
    """A block of random weights is hardly ever right: what it drafts is verified and given up."""
    plain, drafting = mtp_pair
    assert_same(plain, drafting, settings)
    assert drafting.config()["speculative_config"] == MTP
    assert plain.stats().spec_decode_num_proposed_tokens == 0
    assert_nothing_left(drafting)


def test_a_model_that_drafts_is_left_in_the_middle(mtp_pair, assert_nothing_left):
    _, drafting = mtp_pair
    leave_in_the_middle(drafting)
    assert_nothing_left(drafting)


DRAFT = {"method": "draft_model", "num_speculative_tokens": 4}


@pytest.fixture(scope="module", params=[("quant_models/Q4_K_M", "quant_models/Q4_0"), ("arch/qwen3", "arch/qwen2")])
def draft_pair(tiny_model, request):
    """An engine without draft tokens, and one with a draft model: of the same weights in another type, or of others."""
    settings = {"max_model_len": 192, "max_num_seqs": 4, "max_num_batched_tokens": 32, "num_threads": 1}
    file, draft = map(tiny_model, request.param)
    # Whoever names a model and no method means a draft model.
    config = {"model": draft, "num_speculative_tokens": 4}
    with LLM(file, **settings) as plain, LLM(file, **settings, speculative_config=config) as drafting:
        assert drafting.config()["speculative_config"] == DRAFT | {"model": str(draft)}
        yield plain, drafting


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 3, "n": 3},
        {"temperature": 0.0, "frequency_penalty": 0.2, "logprobs": 2},
    ],
    ids=str,
)
def test_a_draft_model_changes_no_text(draft_pair, settings, assert_nothing_left):
    plain, drafting = draft_pair
    assert_same(plain, drafting, settings)
    assert_nothing_left(drafting)


def test_a_draft_model_is_in_the_plan_and_in_no_vector(draft_pair, assert_nothing_left):
    plain, drafting = draft_pair
    before, after = plain.memory(), drafting.memory()
    assert after.weights > before.weights
    ours, theirs = (llm.embed([[5, 6, 7, 8], list(range(3, 60))], progress=False) for llm in (drafting, plain))
    assert (ours == theirs).all()
    leave_in_the_middle(drafting)
    assert_nothing_left(drafting)


def test_draft_models_of_no_use_are_refused(tiny_model, tmp_path):
    file = tiny_model("arch/qwen3")

    def load(draft, **settings):
        LLM(file, **settings, speculative_config={"model": draft})

    with pytest.raises(FileNotFoundError, match=re.escape("no-such.gguf")):
        load(tmp_path / "no-such.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_model("arch/qwen2").read_bytes()[:5000])
    with pytest.raises(ModelFileError, match=re.escape(str(broken))):
        load(broken)
    with pytest.raises(InvalidRequestError, match="a draft model with the model's vocabulary; it has 448 tokens, the"):
        load(tiny_model("arch/glm4"))
    with pytest.raises(InvalidRequestError, match="attends in both directions"):
        load(tiny_model("embedding/bert"))
    with pytest.raises(InvalidRequestError, match=re.escape("hf:OWNER/REPO")):
        load("hf:nobody")


async def test_a_draft_model_in_a_process_of_its_own(tiny_model):
    """The child finds the draft model, and its counts come back."""
    model, draft = tiny_model("quant_models/Q4_K_M"), tiny_model("quant_models/Q4_0")
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    prompt = [5, 6, 7, 8]
    with LLM(model, max_model_len=128) as llm:
        expected = llm.generate(prompt, params, progress=False)[0].outputs[0].token_ids
    engine = await AsyncLLM.load(model, max_model_len=128, speculative_config={"model": draft}, isolate=True)
    async with engine:
        async for output in engine.generate(prompt, params):
            last = output
        assert last.outputs[0].token_ids == expected
        assert_counts(engine.stats())
        assert engine.stats().spec_decode_num_accepted_tokens > 0
        assert engine.config()["speculative_config"] == DRAFT | {"model": str(draft)}


async def test_from_asyncio_in_a_process_of_its_own(tiny_model, assert_nothing_left):
    """The child has the settings, and its counts come back."""
    model = tiny_model("quant_models/Q4_0")
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    prompt = [5, 6, 7, 8] * 6
    with LLM(model, max_model_len=128) as llm:
        expected = llm.generate(prompt, params, progress=False)[0].outputs[0].token_ids
    config = {"prompt_lookup_min": 1}
    engine = await AsyncLLM.load(model, max_model_len=128, speculative_config=config, isolate=True)
    async with engine:
        async for output in engine.generate(prompt, params):
            last = output
        assert last.outputs[0].token_ids == expected
        assert_counts(engine.stats())
        assert engine.config()["speculative_config"] == NGRAM | config
