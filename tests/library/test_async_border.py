"""`AsyncLLM` where Python and the engine meet: names, conversions, and what must not hold up the event loop."""

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest
import rocmforge.outputs
from conftest import SETTLE_SECONDS, collect
from rocmforge import AsyncLLM, InvalidRequestError, SamplingParams

SHORT = SamplingParams(max_tokens=12, ignore_eos=True, seed=1)
# Many sequences make steps slow: the request cannot end before it is left.
SLOW = SamplingParams(max_tokens=200, n=32, ignore_eos=True, seed=1)


async def close_it(outputs, engine):
    await outputs.aclose()


async def cancel_it(outputs, engine):
    # An output that is there already ends a wait before it can be cancelled.
    is_cancelled = False
    while not is_cancelled:
        waiting = asyncio.ensure_future(anext(outputs))
        await asyncio.sleep(0)
        is_cancelled = waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting


async def abort_it(outputs, engine):
    assert await engine.abort("mine")


async def abort_it_with_others(outputs, engine):
    assert await engine.abort(["nobody", "mine"])
    assert not await engine.abort(["nobody", "mine"])


@pytest.mark.parametrize("leave", [close_it, cancel_it, abort_it, abort_it_with_others], ids=lambda way: way.__name__)
async def test_a_name_is_free_once_its_request_is_left(engine, leave, assert_nothing_left):
    """A3: at once, not after the step that it is in; and its old owner does not take it from the new one."""
    for _ in range(5):
        outputs = engine.generate([5] * 30, SLOW, request_id="mine")
        await anext(outputs)
        await leave(outputs, engine)
        again = engine.generate([6] * 30, SLOW, request_id="mine")
        await anext(again)
        with pytest.raises(InvalidRequestError, match="in use"):
            await collect(engine, [7], SHORT, request_id="mine")
        rest = [output async for output in outputs]
        if leave in (abort_it, abort_it_with_others):
            assert rest[-1].finished
            assert {one.finish_reason for one in rest[-1].outputs} == {"abort"}
        await again.aclose()
    await asyncio.to_thread(assert_nothing_left, engine)


async def test_a_record_outlives_the_reuse_of_its_name(engine, assert_nothing_left):
    """A record is that of the last finished request of its name, until the next one has finished."""
    await collect(engine, [3] * 5, SHORT, request_id="again")
    outputs = engine.generate([6] * 30, SLOW, request_id="again")
    await anext(outputs)
    record = engine.record("again")
    assert (record.num_prompt_tokens, record.num_generated_tokens, record.finish_reason) == (5, 12, "length")
    await outputs.aclose()
    await asyncio.to_thread(assert_nothing_left, engine)
    record = engine.record("again")
    assert (record.num_prompt_tokens, record.finish_reason) == (30, "abort")


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final_only"])
async def test_every_position_is_converted_once(engine, kind, monkeypatch, assert_nothing_left):
    """A12: however many outputs there are. Cumulative outputs share what was built; their lists are their own."""
    converted = []
    convert = rocmforge.outputs._completion

    def counting(new):
        converted.extend(new.logprobs)
        return convert(new)

    monkeypatch.setattr(rocmforge.outputs, "_completion", counting)
    params = SamplingParams(
        max_tokens=100, n=2, logprobs=3, prompt_logprobs=0, ignore_eos=True, seed=1, output_kind=kind
    )
    outputs = await collect(engine, [5] * 30, params)
    assert len(converted) == len({id(position) for position in converted}) == 2 * 100
    prompts = [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]
    assert len(prompts[0]) == 30
    assert all(prompt is prompts[0] for prompt in prompts)
    held = {0: [], 1: []}
    for output in outputs:
        for one in output.outputs:
            held[one.index].append(len(one.logprobs))
    if kind == "delta":
        assert {index: sum(lengths) for index, lengths in held.items()} == {0: 100, 1: 100}
    elif kind == "final_only":
        assert held == {0: [100], 1: [100]}
    else:
        assert all(lengths == sorted(lengths) and lengths[-1] == 100 for lengths in held.values())
    if kind == "cumulative":
        assert len(outputs) > 2
        last = outputs[-1].outputs[0]
        assert len(last.logprobs) == len(last.token_ids) == 100
        for output in outputs:
            for mine, whole in zip(output.outputs, outputs[-1].outputs, strict=True):
                assert mine.token_ids == whole.token_ids[: len(mine.token_ids)]
                assert all(a is b for a, b in zip(mine.logprobs, whole.logprobs, strict=False))
        outputs[-2].outputs[0].token_ids.clear()
        assert len(last.token_ids) == 100
    await asyncio.to_thread(assert_nothing_left, engine)


async def test_a_long_text_is_checked_like_a_short_one(engine, assert_nothing_left):
    """A8: it is tokenised on a thread, and refused there in the same way."""
    for times in (1, 20_000):
        with pytest.raises(InvalidRequestError, match="UTF-8"):
            await collect(engine, "a\ud800" * times, SHORT)
    with pytest.raises(InvalidRequestError, match="UTF-8"):
        await collect(engine, "a", SHORT, request_id="\ud800")
    with pytest.raises(InvalidRequestError, match="priority"):
        await collect(engine, "a", SHORT, priority=2**31)
    await asyncio.to_thread(assert_nothing_left, engine)


async def test_questions_do_not_hold_up_the_loop(long_model, assert_nothing_left):
    """A15: the engine answers between two steps; the loop goes on until then."""
    prompt = [5] * 6000
    async with AsyncLLM(
        long_model, max_model_len=8192, max_num_batched_tokens=6144, num_threads=1, kv_cache_memory=1 << 25
    ) as engine:
        for question, expected in ((engine.reset_prefix_cache, False), (engine.check_integrity, None)):
            outputs = engine.generate(prompt, SHORT)
            first = asyncio.ensure_future(anext(outputs))
            while not engine.block_map()["owners"].any():
                await asyncio.sleep(0.001)
            # The step with the whole prompt is under way.
            answer = asyncio.ensure_future(question())
            turns = 0
            while not answer.done():
                turns += 1
                await asyncio.sleep(0.001)
            assert await answer is expected
            # A question that held the loop would be answered by its first turn.
            assert turns > 1
            await first
            await outputs.aclose()
            await asyncio.to_thread(assert_nothing_left, engine)
            assert await engine.reset_prefix_cache()


async def test_loading_does_not_hold_up_the_loop(model, assert_nothing_left):
    """A15: `AsyncLLM.load` is the constructor on another thread."""
    threads = set()
    engine = await AsyncLLM.load(
        model, max_model_len=64, num_threads=1, on_load=lambda _done, _total: threads.add(threading.get_ident())
    )
    assert threads
    assert threading.get_ident() not in threads
    async with engine:
        assert len((await collect(engine, [3], SHORT))[-1].outputs[0].token_ids) == 12
        await asyncio.to_thread(assert_nothing_left, engine)
    with pytest.raises(FileNotFoundError):
        await AsyncLLM.load(model.with_name("nothing.gguf"))


def num_threads():
    """Counts the threads of this process, those of the engine included."""
    return len(list(Path("/proc/self/task").iterdir()))


async def test_a_load_that_is_cancelled_stops(model):
    """A15: nothing is left of it."""
    before = num_threads()
    reached, go_on = threading.Event(), threading.Event()

    def hold(_done, _total):
        reached.set()
        go_on.wait()

    try:
        loading = asyncio.create_task(AsyncLLM.load(model, max_model_len=64, num_threads=1, on_load=hold))
        await asyncio.to_thread(reached.wait)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
    finally:
        go_on.set()
    # The executor's own threads stay; an engine would have two more, and workers.
    await asyncio.get_running_loop().shutdown_default_executor()
    deadline = time.monotonic() + SETTLE_SECONDS
    while num_threads() > before:  # the system takes a moment to bury a thread
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
