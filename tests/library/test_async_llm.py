"""`AsyncLLM`: streams, merges, and aborts what nobody waits for any more."""

import asyncio
import contextlib
import itertools
import threading

import pytest
from conftest import collect
from rocmforge import AsyncLLM, EngineDeadError, InvalidRequestError, QueueFullError, SamplingParams

LONG = SamplingParams(max_tokens=200, ignore_eos=True, seed=1)
# Many sequences make steps so slow that the request cannot end before it is left.
SLOW = LONG.replace(n=32)
SHORT = SamplingParams(max_tokens=12, ignore_eos=True, seed=1)


async def nothing_left(assert_nothing_left, engine):
    await asyncio.to_thread(assert_nothing_left, engine)


async def test_outputs_are_cumulative(engine, assert_nothing_left):
    outputs = await collect(engine, [3, 4], SHORT, request_id="mine")
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert {output.request_id for output in outputs} == {"mine"}
    for before, after in itertools.pairwise(outputs):
        old, new = before.outputs[0], after.outputs[0]
        assert new.token_ids[: len(old.token_ids)] == old.token_ids
        assert new.text.startswith(old.text)
    assert len(outputs[-1].outputs[0].token_ids) == 12
    assert outputs[-1].outputs[0].finish_reason == "length"
    await nothing_left(assert_nothing_left, engine)


async def test_every_kind_tells_the_same(engine):
    """S21: deltas joined, the last cumulative output and the final one are equal, log-probabilities included."""
    params = SHORT.replace(logprobs=1, prompt_logprobs=0)
    cumulative = (await collect(engine, [3, 4], params))[-1]
    (final,) = await collect(engine, [3, 4], params.replace(output_kind="final_only"))
    deltas = await collect(engine, [3, 4], params.replace(output_kind="delta"))
    assert final.outputs == cumulative.outputs
    assert final.prompt_logprobs == cumulative.prompt_logprobs == deltas[-1].prompt_logprobs
    parts = [delta.outputs[0] for delta in deltas]
    assert "".join(part.text for part in parts) == final.outputs[0].text
    assert [token for part in parts for token in part.token_ids] == final.outputs[0].token_ids
    assert [entry for part in parts for entry in part.logprobs] == final.outputs[0].logprobs
    assert parts[-1].cumulative_logprob == final.outputs[0].cumulative_logprob


async def test_several_sequences(engine, assert_nothing_left):
    params = SHORT.replace(n=3, output_kind="delta")
    tokens = {0: [], 1: [], 2: []}
    async for output in engine.generate([3] * 20, params):
        for part in output.outputs:
            tokens[part.index].extend(part.token_ids)
    (final,) = await collect(engine, [3] * 20, params.replace(output_kind="final_only"))
    assert tokens == {part.index: part.token_ids for part in final.outputs}
    await nothing_left(assert_nothing_left, engine)


async def test_consumer_that_lags_gets_merged_outputs(engine):
    """Outputs do not pile up: what came meanwhile is one output, complete."""
    outputs = []
    async for output in engine.generate([3, 4], LONG.replace(output_kind="delta")):
        outputs.append(output.outputs[0])
        while len(outputs) == 1 and engine.stats().num_running:
            await asyncio.sleep(0.001)
    assert len(outputs) <= 3
    assert sum(len(part.token_ids) for part in outputs) == 200


async def test_many_requests_together_equal_each_alone(engine, assert_nothing_left):
    """S12: on one event loop."""
    params = [SHORT.replace(seed=i, max_tokens=5 + i % 20, output_kind="final_only") for i in range(100)]
    together = await asyncio.gather(*(collect(engine, [i + 1] * (i % 30 + 1), params[i]) for i in range(100)))
    for i in range(0, 100, 9):
        alone = await collect(engine, [i + 1] * (i % 30 + 1), params[i])
        assert together[i][0].outputs == alone[0].outputs
    await nothing_left(assert_nothing_left, engine)


async def leave_by_break(engine):
    async for _ in engine.generate([5] * 30, SLOW):
        break


async def leave_by_aclose(engine):
    outputs = engine.generate([5] * 30, SLOW)
    await anext(outputs)
    await outputs.aclose()


async def started(engine, params=SLOW, **kwargs):
    """A task that consumes a request, once the first output has come."""
    running = asyncio.Event()

    async def consume():
        outputs = []
        async for output in engine.generate([5] * 30, params, **kwargs):
            outputs.append(output)
            running.set()
        return outputs

    task = asyncio.create_task(consume())
    await running.wait()
    return task


async def leave_by_cancel(engine):
    task = await started(engine)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def leave_by_cancel_before_the_first_output(engine):
    task = asyncio.create_task(collect(engine, [5] * 30, SLOW))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def leave_by_error(engine):
    with pytest.raises(ZeroDivisionError):
        async with contextlib.aclosing(engine.generate([5] * 30, SLOW)) as outputs:
            async for _ in outputs:
                raise ZeroDivisionError


async def leave_by_timeout_of_the_caller(engine):
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.005):
            await collect(engine, [5] * 30, SLOW)


async def leave_to_the_garbage_collector(engine):
    outputs = engine.generate([5] * 30, SLOW)
    await anext(outputs)
    del outputs


WAYS = [
    leave_by_break,
    leave_by_aclose,
    leave_by_cancel,
    leave_by_cancel_before_the_first_output,
    leave_by_error,
    leave_by_timeout_of_the_caller,
    leave_to_the_garbage_collector,
]


@pytest.mark.parametrize("leave", WAYS, ids=lambda way: way.__name__)
async def test_kv_cache_cleanup_on_cancellation(engine, leave, assert_nothing_left):
    """K2, S16, S20: in whatever way the consumer goes, its request is aborted and its blocks are free."""
    steps = engine.stats().engine_steps
    await leave(engine)
    await nothing_left(assert_nothing_left, engine)
    # It was aborted, not run to its end.
    assert engine.stats().engine_steps - steps < 200


async def test_abort_by_name(engine, assert_nothing_left):
    outputs = []
    async for output in engine.generate([5] * 30, SLOW, request_id="victim"):
        outputs.append(output)
        if len(outputs) == 1:
            assert await engine.abort("victim")
    assert outputs[-1].finished
    assert outputs[-1].outputs[0].finish_reason == "abort"
    assert len(outputs[-1].outputs[0].token_ids) < 200
    assert not await engine.abort("victim")
    await nothing_left(assert_nothing_left, engine)


async def test_deadline_ends_a_request(engine, assert_nothing_left):
    """K2: `timeout` is the engine's own deadline: the request ends in order, with what it has."""
    outputs = await collect(engine, [5] * 30, SLOW, timeout=0.01)
    assert outputs[-1].outputs[0].finish_reason == "timeout"
    outputs = await collect(engine, [5] * 30, LONG, timeout=0.0)
    assert outputs[-1].outputs[0].finish_reason == "timeout"
    await nothing_left(assert_nothing_left, engine)


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf")])
async def test_timeouts_that_are_no_time(engine, timeout):
    with pytest.raises(InvalidRequestError, match="timeout"):
        await collect(engine, [5], SHORT, timeout=timeout)


async def test_name_in_use_is_refused(engine, assert_nothing_left):
    outputs = engine.generate([5] * 30, SLOW, request_id="twin")
    await anext(outputs)
    with pytest.raises(InvalidRequestError, match="twin"):
        await collect(engine, [5], SHORT, request_id="twin")
    await outputs.aclose()
    await nothing_left(assert_nothing_left, engine)


async def test_full_queue_is_said_at_once(model, assert_nothing_left):
    """S28: the queue is bounded, and the error says by what."""
    async with AsyncLLM(model, max_queue_size=2, max_num_seqs=1, max_model_len=256, num_threads=1) as engine:
        results = await asyncio.gather(
            *(collect(engine, [5], LONG) for _ in range(20)),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, QueueFullError)]
        served = [result for result in results if isinstance(result, list)]
        assert len(refused) + len(served) == 20
        assert refused
        assert "max_queue_size" in str(refused[0])
        assert all(len(result[-1].outputs[0].token_ids) == 200 for result in served)
        await nothing_left(assert_nothing_left, engine)


async def test_lower_priority_value_runs_earlier(model):
    async with AsyncLLM(model, max_num_seqs=1, max_model_len=256, num_threads=1) as engine:
        order = []

        async def run(name, priority):
            await collect(engine, [5], SHORT, priority=priority)
            order.append(name)

        first = await started(engine, LONG)
        await asyncio.gather(run("late", 5), run("early", -5), run("middle", 0))
        assert first.done()
        assert order == ["early", "middle", "late"]


async def test_a_short_prompt_passes_a_long_one(model, assert_nothing_left):
    """A17: its first token comes while the long prompt is still computed, in 30 steps here."""
    sizes = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "max_model_len": 256}
    async with AsyncLLM(model, num_threads=1, enable_prefix_caching=False, **sizes) as engine:
        assert engine.config()["long_prefill_token_threshold"] == 8
        for _ in range(50):
            results = await asyncio.gather(
                collect(engine, [5] * 240, SHORT.replace(max_tokens=1)), collect(engine, [6] * 3, SHORT)
            )
            long, short = (result[-1].metrics for result in results)
            # The steps take milliseconds together. On a busy machine, the short one may arrive after most of them.
            if short.arrival_time - long.arrival_time < 0.2 * long.time_to_first_token:
                break
        else:
            pytest.fail("the prompts never met")
        # All of the short one's 12 tokens fit beside 15 steps of the long one's prompt.
        assert short.total_time < long.time_to_first_token
        await nothing_left(assert_nothing_left, engine)


async def test_an_accepted_request_is_counted(model):
    """A13: at any time between its acceptance and its end a request waits or runs."""
    async with AsyncLLM(model, num_threads=1, max_model_len=256) as engine:
        counts = []
        outputs = engine.generate([5] * 200, LONG.replace(max_tokens=50), request_id="one")
        request = asyncio.ensure_future(anext(outputs))
        while not request.done():
            await asyncio.sleep(0)
            stats = engine.stats()
            if not any(stats.num_finished.values()):
                counts.append(stats.num_waiting + stats.num_running)
        assert set(counts) == {1}
        await outputs.aclose()


async def test_long_text_is_tokenised_beside_the_loop(engine):
    with pytest.raises(InvalidRequestError):
        await collect(engine, "word " * 10_000, SHORT)


async def test_close_ends_generators(model):
    """S4, S6: those that wait are told."""
    engine = AsyncLLM(model, max_model_len=256, num_threads=1)
    tasks = [await started(engine) for _ in range(2)]
    await asyncio.to_thread(engine.close)
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=30)
    assert [result[-1].outputs[0].finish_reason for result in results] == ["abort", "abort"]
    with pytest.raises(EngineDeadError):
        await collect(engine, [5], SHORT)


def test_loops_in_many_threads(engine, assert_nothing_left):
    """K3: an event loop per thread, one engine; every loop gets its own outputs."""
    expected = asyncio.run(collect(engine, [9] * 9, SHORT))[-1].outputs[0].token_ids
    results = []

    def work():
        async def three():
            return await asyncio.gather(*(collect(engine, [9] * 9, SHORT) for _ in range(3)))

        results.extend(outputs[-1].outputs[0].token_ids for outputs in asyncio.run(three()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 24
    assert_nothing_left(engine)


async def test_chat_streams(smollm2_path):
    async with AsyncLLM(smollm2_path, max_model_len=256) as engine:
        conversation = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
        params = SamplingParams(temperature=0.0, max_tokens=16, output_kind="delta")
        text = "".join([output.outputs[0].text async for output in engine.chat(conversation, params)])
        assert "Paris" in text


async def test_chat_renders_off_the_loop(model, assert_nothing_left):
    """A15: the loop runs on while a conversation is rendered and tokenised, on a thread."""
    async with AsyncLLM(model, max_model_len=64, num_threads=1) as engine:
        loop_ran = threading.Event()
        real = engine.tokenizer

        class Held:
            def encode_chat(self, *args, **kwargs):
                # Only the loop can set it: on the loop's own thread this would wait for itself.
                assert loop_ran.wait(20)
                return real.encode_chat(*args, **kwargs)

        vars(engine)["tokenizer"] = Held()
        answer = engine.chat([{"role": "user", "content": "x"}], SHORT, chat_template="{{ messages[0].content }}")
        started = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(0)
        loop_ran.set()
        assert (await started).prompt == "x"
        await answer.aclose()
        await nothing_left(assert_nothing_left, engine)


async def test_added_request_is_refused_at_once(engine):
    """A server learns of it before it has sent anything."""
    with pytest.raises(InvalidRequestError):
        await engine.add_request([], SHORT)


async def test_added_request_streams_as_generate_does(engine, assert_nothing_left):
    stream = await engine.add_request([3, 4], SHORT, request_id="added")
    async with stream:
        outputs = [output async for output in stream]
        assert [output async for output in stream] == []
    assert (stream.request_id, stream.prompt_token_ids) == ("added", [3, 4])
    assert outputs[-1].outputs == (await collect(engine, [3, 4], SHORT))[-1].outputs
    await nothing_left(assert_nothing_left, engine)


@pytest.mark.parametrize("way", ["closed", "forgotten"])
async def test_added_request_that_is_left_ends(engine, assert_nothing_left, way):
    before = engine.stats().num_finished["abort"]
    stream = await engine.add_request([5] * 30, SLOW)
    await anext(stream)
    if way == "closed":
        await stream.aclose()
        await stream.aclose()
    del stream
    await asyncio.sleep(0)
    await nothing_left(assert_nothing_left, engine)
    assert engine.stats().num_finished["abort"] == before + 1
