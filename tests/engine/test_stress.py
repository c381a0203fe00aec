"""A thousand requests that end in every way there is, from threads and from asyncio, in a pool far too small."""

import asyncio
import random
import resource
import threading

import pytest
from rocmforge import LLM, AsyncLLM, InvalidRequestError, SamplingParams

REQUESTS = 1000
THREADS = 16
ENGINE = {"max_num_seqs": 12, "max_num_batched_tokens": 48, "max_model_len": 176, "num_threads": 2}
# Bytes of the pool of each model, and the preemptions that there are at least: 13 blocks for up to 12 sequences of up
# to 11 blocks each; and as many with slots of recurrent states for two sequences, so that fewer are stopped half-way.
POOLS = {"quant_models/Q4_K_M": (13 * 16 * 2 * 2 * 2 * 64 * 2, 50), "arch/qwen35": (280_000, 10)}


@pytest.fixture(scope="module", params=[pytest.param("quant_models/Q4_K_M", marks=pytest.mark.deep), "arch/qwen35"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name, tiny_model):
    return tiny_model(name)


@pytest.fixture(scope="module")
def settings(name):
    return {**ENGINE, "kv_cache_memory": POOLS[name][0]}


def make_request(i):
    """Request `i`: its prompt, its parameters, and how it is meant to end."""
    rng = random.Random(i)
    prompt = [rng.randrange(512) for _ in range(rng.randrange(1, 120))]
    if rng.random() < 0.4:
        prompt = [i % 5] * 33 + prompt[:60]
    params = {
        "max_tokens": rng.randrange(1, 40),
        "temperature": rng.choice([0.0, 1.0]),
        "seed": i,
        "ignore_eos": rng.random() < 0.8,
    }
    if rng.random() < 0.3:
        params["stop_token_ids"] = [rng.randrange(512) for _ in range(40)]
    fate = rng.choices(["run", "cancel", "deadline", "invalid"], [75, 15, 5, 5])[0]
    if fate == "invalid":
        prompt = rng.choice([[], [512], [3] * 500])
    return prompt, SamplingParams(**params), fate


@pytest.fixture(scope="module")
def expected(model):
    """Every request alone, in an engine that has room for it."""
    with LLM(model, enable_prefix_caching=False, max_model_len=176, num_threads=1) as llm:
        requests = [make_request(i) for i in range(REQUESTS)]
        return [
            llm.generate(prompt, params, progress=False)[0].outputs[0] if fate != "invalid" else None
            for prompt, params, fate in requests
        ]


def assert_prefix(got, alone):
    assert got.token_ids == alone.token_ids[: len(got.token_ids)]


def assert_same(got, alone):
    assert (got.token_ids, got.text, got.finish_reason) == (alone.token_ids, alone.text, alone.finish_reason)


def test_thousand_requests_from_sixteen_threads(name, model, settings, expected, assert_nothing_left):
    """K2, K3, S6, S11, S16, S24: nothing is left, memory is flat, each result equals that of the request alone."""
    llm = LLM(model, **settings)
    baseline = llm.memory(), llm.stats().device_allocations
    todo = iter(range(REQUESTS))
    lock, failures = threading.Lock(), []

    def work():
        while True:
            with lock:
                i = next(todo, None)
            if i is None:
                return
            prompt, params, fate = make_request(i)
            try:
                if fate == "invalid":
                    with pytest.raises(InvalidRequestError):
                        llm.generate(prompt, params, progress=False)
                else:
                    assert_same(llm.generate(prompt, params, progress=False)[0].outputs[0], expected[i])
            except BaseException as error:
                failures.append((i, error))
                raise

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert llm.stats().num_preemptions > POOLS[name][1]
    assert_nothing_left(llm)
    assert (llm.memory(), llm.stats().device_allocations) == baseline
    llm.close()


async def test_thousand_requests_from_asyncio(name, model, settings, expected, assert_nothing_left):
    """S20, K2: cancels, deadlines and errors among them."""
    async with AsyncLLM(model, **settings) as engine:
        baseline = engine.memory(), engine.stats().device_allocations

        async def one(i):
            prompt, params, fate = make_request(i)
            if fate == "invalid":
                with pytest.raises(InvalidRequestError):
                    async for _ in engine.generate(prompt, params):
                        pass
                return
            last, cancel_after = None, i % 7
            timeout = 0.002 * (i % 10) if fate == "deadline" else None
            async for out in engine.generate(prompt, params, request_id=f"r{i}", timeout=timeout):
                last = out
                if fate == "cancel" and len(out.outputs[0].token_ids) >= cancel_after:
                    break
            if fate == "run":
                assert_same(last.outputs[0], expected[i])
            elif last is not None:
                assert_prefix(last.outputs[0], expected[i])

        gate = asyncio.Semaphore(64)

        async def limited(i):
            async with gate:
                await one(i)

        await asyncio.gather(*(limited(i) for i in range(100)))
        settled = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await asyncio.gather(*(limited(i) for i in range(100, REQUESTS)))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - settled
        assert grown < 32 * 1024, f"host memory grew by {grown} KiB over 900 requests"
        stats = engine.stats()
        assert stats.num_preemptions > POOLS[name][1]
        assert stats.num_finished["abort"] > 0
        await asyncio.to_thread(assert_nothing_left, engine)
        assert (engine.memory(), engine.stats().device_allocations) == baseline
