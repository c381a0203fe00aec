"""Tests of things that end under their requests: an event loop, an inbox, the engine."""

import asyncio
import threading
import time

import pytest
from rocmforge import LLM, AsyncLLM, SamplingParams

# More tokens than any test waits for: such a request never ends by itself.
ENDLESS = SamplingParams(max_tokens=60_000, ignore_eos=True, seed=1)
# A prompt that one step computes, for longer than a waiting call sleeps at a time.
LONG_STEP = {"max_model_len": 8192, "max_num_batched_tokens": 6144, "num_threads": 1, "kv_cache_memory": 1 << 25}
LONG_PROMPT = [5] * 6000


@pytest.fixture(scope="module")
def engine(long_model):
    with AsyncLLM(long_model, num_threads=1, kv_cache_memory=1 << 27) as engine:
        yield engine


def aborted(engine):
    """Requests that ended as aborted; asserts that none ended otherwise."""
    finished = engine.stats().num_finished
    assert sum(finished.values()) == finished["abort"]
    return finished["abort"]


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
def test_loop_that_is_closed_under_its_requests(engine, kind, assert_nothing_left):
    """S20, A24: closed with a wake-up under way, which a stopped loop takes and never runs: nobody is left to deliver
    to, and the requests are aborted, although their generators still exist.
    """
    before = aborted(engine)
    loop = asyncio.new_event_loop()
    wake_ups, call = [], loop.call_soon_threadsafe

    def call_soon_threadsafe(callback, *args, **kwargs):
        handle = call(callback, *args, **kwargs)
        wake_ups.append(callback)
        return handle

    loop.call_soon_threadsafe = call_soon_threadsafe
    outputs = engine.generate([5] * 30, ENDLESS.replace(output_kind=kind))
    silent = engine.generate([6] * 30, ENDLESS.replace(output_kind="final_only"))

    async def start():
        waiting = asyncio.ensure_future(anext(silent))
        if kind == "final_only":
            await asyncio.sleep(0)
        else:
            await anext(outputs)
        return waiting

    waiting = loop.run_until_complete(start())
    seen, tokens = len(wake_ups), engine.stats().generated_tokens
    # Some deliveries later a wake-up is under way, or was before.
    while len(wake_ups) == seen and engine.stats().generated_tokens < tokens + 5:
        time.sleep(0.001)
    loop.close()
    assert_nothing_left(engine)
    assert aborted(engine) == before + (1 if kind == "final_only" else 2)
    del waiting
    with pytest.raises(StopIteration):
        outputs.aclose().send(None)


def test_inbox_that_is_dropped(engine, assert_nothing_left):
    """A24: with the last reference to it, whoever could take its outputs is gone: its requests are aborted."""
    before = aborted(engine)
    inbox = engine._engine.inbox()
    for token in range(3):
        inbox.submit([token], ENDLESS)
    del inbox
    assert_nothing_left(engine)
    assert aborted(engine) == before + 3


def test_generate_under_close_gives_what_there_is(long_model):
    """A14: `close` in another thread ends a call in one way, however long the step has to go: every prompt, submitted
    or not, has an output, and what had not finished was aborted.
    """
    llm = LLM(long_model, max_num_seqs=1, max_queue_size=1, **LONG_STEP)
    results = []

    def work():
        prompts = [[3], LONG_PROMPT, [4], [5]]
        params = [ENDLESS.replace(max_tokens=max_tokens) for max_tokens in (1, 1000, 1, 1)]
        results.extend(llm.generate(prompts, params, progress=False))

    worker = threading.Thread(target=work)
    worker.start()
    while not (llm.block_map()["owners"] > 0).sum() > 100:
        time.sleep(0.001)
    llm.close()
    worker.join(timeout=60)
    assert [output.finished for output in results] == [True] * 4
    assert [output.outputs[0].finish_reason for output in results] == ["length", "abort", "abort", "abort"]
    # The step that was under way may have given the second its first token.
    assert [len(output.outputs[0].token_ids) for output in results] in ([1, 0, 0, 0], [1, 1, 0, 0])
    assert [output.prompt_token_ids for output in results] == [[3], LONG_PROMPT, [4], [5]]
    assert llm.memory().total == 0


def test_second_close_waits_for_the_first(long_model):
    """A14: when `close` returns, the engine is closed and its memory is free, whoever began to close it."""
    llm = LLM(long_model, **LONG_STEP)
    worker = threading.Thread(target=llm.generate, args=(LONG_PROMPT, SamplingParams(max_tokens=1)))
    worker.start()
    while not llm.block_map()["owners"].any():
        time.sleep(0.001)
    closer = threading.Thread(target=llm.close)
    closer.start()
    while not llm.is_closed:
        time.sleep(0.001)
    llm.close()
    assert llm.memory().total == 0
    closer.join()
    worker.join()


async def test_generators_under_several_closes_end_in_order(long_model):
    """A14: each has its last output, `abort`, whoever of the closing threads comes first."""
    engine = AsyncLLM(long_model, **LONG_STEP)

    async def consume(prompt):
        async for output in engine.generate(prompt, ENDLESS.replace(max_tokens=1000)):
            last = output
        return last.outputs[0].finish_reason

    consumers = [asyncio.create_task(consume(prompt)) for prompt in (LONG_PROMPT, [3], [4])]
    while not engine.block_map()["owners"].any():
        await asyncio.sleep(0.001)
    await asyncio.gather(*(asyncio.to_thread(engine.close) for _ in range(4)))
    assert await asyncio.gather(*consumers) == ["abort"] * 3
