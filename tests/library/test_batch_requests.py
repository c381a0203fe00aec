"""`LLM.generate` of many prompts: checked before the first runs, and what fails alone fails alone."""

import asyncio
import itertools
import threading
import time

import numpy as np
import pytest
from rocmforge import LLM, AsyncLLM, EngineDeadError, InvalidRequestError, RocmForgeError, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, max_model_len=256, max_num_seqs=4, max_queue_size=2, num_threads=1) as engine:
        yield engine


def masked(llm):
    """Parameters that no token is left for: all of them are stop tokens, which may not come yet."""
    return GREEDY.replace(stop_token_ids=np.arange(llm.tokenizer.vocab_size), min_tokens=4)


BAD = {
    "a token id beyond the vocabulary": (
        [1 << 20],
        GREEDY,
        InvalidRequestError,
        "prompt 17: prompt token id: got 1048576",
    ),
    "too long a prompt": ([5] * 300, GREEDY, InvalidRequestError, "prompt 17: .*max_model_len"),
    "a bias beyond the vocabulary": (
        [5],
        GREEDY.replace(logit_bias={1 << 20: 1.0}),
        InvalidRequestError,
        "prompt 17: logit_bias token id",
    ),
    "a lone surrogate": ("a\ud800", GREEDY, InvalidRequestError, "prompt 17: prompt"),
    "no token id": ([5, "x"], GREEDY, TypeError, "prompt 17: prompt token ids"),
}


@pytest.mark.parametrize("bad", BAD)
def test_all_prompts_are_checked_before_the_first_runs(llm, bad, assert_nothing_left):
    """A7: with a queue far shorter than the list; the error names the prompt, and not one step was computed."""
    prompt, params, error, message = BAD[bad]
    steps = llm.stats().engine_steps
    prompts = [[i + 1] for i in range(17)] + [prompt] + [[9]]
    with pytest.raises(error, match=message):
        llm.generate(prompts, [GREEDY] * 17 + [params] + [GREEDY], progress=False)
    assert llm.stats().engine_steps == steps
    assert_nothing_left(llm)


def test_one_prompt_needs_no_index(llm):
    with pytest.raises(InvalidRequestError, match=r"^prompt token id"):
        llm.generate([[1 << 20]], progress=False)


def test_what_fails_alone_fails_alone(llm, assert_nothing_left):
    """A7: a request without a token to sample ends with `error`; its neighbours have what they have alone."""
    prompts = [[i + 1] * 5 for i in range(9)]
    (alone,) = llm.generate(prompts[3], GREEDY, progress=False)
    params = [GREEDY] * 4 + [masked(llm)] + [GREEDY] * 4
    outputs = llm.generate(prompts, params, progress=False)
    assert [output.finished for output in outputs] == [True] * 9
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons == ["length"] * 4 + ["error"] + ["length"] * 4
    assert outputs[3].outputs == alone.outputs
    assert outputs[4].outputs[0].error
    assert outputs[4].outputs[0].finished()
    assert [output.outputs[0].error for output in outputs if output is not outputs[4]] == [None] * 8
    assert_nothing_left(llm)


async def test_a_stream_that_fails_raises(model, assert_nothing_left):
    """A7: one request per generator: the error comes out of it, after what it gave; others go on."""
    with AsyncLLM(model, max_model_len=256, num_threads=1) as engine:
        with pytest.raises(RocmForgeError) as caught:
            async for _ in engine.generate([3], masked(engine)):
                pass
        assert not isinstance(caught.value, EngineDeadError | InvalidRequestError)
        async for output in engine.generate([3], GREEDY):
            last = output
        assert last.outputs[0].finish_reason == "length"
        await asyncio.to_thread(assert_nothing_left, engine)


@pytest.mark.parametrize("prompts", [[itertools.repeat(5)], itertools.repeat(5), [[3], itertools.cycle([5, 6])]])
def test_prompts_without_an_end(llm, prompts, assert_nothing_left):
    """A21: of an iterable one id more is read than a prompt may have."""
    with pytest.raises(
        InvalidRequestError, match="prompt token ids: got more than 256, expected at most max_model_len"
    ):
        llm.generate(prompts, GREEDY, progress=False)
    with pytest.raises(InvalidRequestError, match="max_model_len"):
        llm.prompt_logits(itertools.repeat(5))
    assert_nothing_left(llm)


def test_iterables_are_prompts(llm):
    ids = [5, 6, 7, 8]
    (expected,) = llm.generate(ids, GREEDY, progress=False)
    for prompts in (iter(ids), [iter(ids)], iter([ids]), (one for one in ids)):
        (output,) = llm.generate(prompts, GREEDY, progress=False)
        assert (output.outputs, output.prompt_token_ids) == (expected.outputs, ids)


def test_prompts_as_vllm_names_them(llm):
    text = "ab ab"
    ids = llm.tokenize(text)
    (expected,) = llm.generate(text, GREEDY, use_tqdm=False)
    forms = [{"prompt": text}, {"prompt_token_ids": ids}, {"prompt_token_ids": np.array(ids)}]
    for prompts in (*forms, *([form] for form in forms)):
        (output,) = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert output.outputs == expected.outputs
    outputs = llm.generate([text, *forms], GREEDY, use_tqdm=False)
    assert [output.prompt for output in outputs] == [text, text, None, None]
    assert [output.outputs for output in outputs] == [expected.outputs] * 4
    for bad in ({}, {"a": 1}, {"prompt": 5}, {"prompt": text, "prompt_token_ids": ids}, {"prompt_token_ids": "ab"}):
        with pytest.raises(TypeError, match="expected text, token ids"):
            llm.generate(bad, GREEDY, use_tqdm=False)


def test_lower_priority_value_runs_earlier(long_model, assert_nothing_left):
    """The queue of one batch is served by priority, then in the order given."""
    with LLM(long_model, max_num_seqs=1, num_threads=1, kv_cache_memory=1 << 27) as llm:
        # Runs until the others wait behind it; a more urgent one that came before its first step would pass it.
        holder = llm._engine.inbox()
        holder.submit([9], GREEDY.replace(max_tokens=60_000))
        while llm.stats().num_running < 1:
            time.sleep(0.001)

        def release():
            while llm.stats().num_waiting < 4:
                time.sleep(0.001)
            holder.close()

        releasing = threading.Thread(target=release)
        releasing.start()
        outputs = llm.generate([[1], [2], [3], [4]], GREEDY, priority=[5, 0, -5, 0], progress=False)
        releasing.join()
        started = [output.metrics.arrival_time + output.metrics.time_in_queue for output in outputs]
        assert sorted(range(4), key=started.__getitem__) == [2, 1, 3, 0]
        for bad, error in (
            (2**31, InvalidRequestError),
            ([1], InvalidRequestError),
            ("ab", TypeError),
            ([1.5] * 2, TypeError),
        ):
            with pytest.raises(error, match="priority"):
                llm.generate([[1], [2]], GREEDY, priority=bad, progress=False)
        assert_nothing_left(llm)
