"""Compares an engine in a process of its own with the same engine in this one: 64 streams of one event loop.

The two take turns, so that both have their share of whatever else the machine does.
"""

import asyncio
import statistics
import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from rocmforge import AsyncLLM, SamplingParams

STREAMS = 64
PROMPT_TOKENS = 16
NEW_TOKENS = 64


async def tokens_per_second(engine: AsyncLLM, new_tokens: int) -> float:
    """The rate at which all streams together come to their ends."""
    params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True, output_kind="delta")

    async def one(index: int) -> int:
        prompt = [5 + (7 * index + i) % 100 for i in range(PROMPT_TOKENS)]
        return sum([len(output.outputs[0].token_ids) async for output in engine.generate(prompt, params)])

    started = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(one, range(STREAMS))))
    return tokens / (time.perf_counter() - started)


@pytest.mark.parametrize("model", ["model_path", "tiny_path"])
def test_streams_of_an_isolated_engine(benchmark: BenchmarkFixture, request: pytest.FixtureRequest, model: str) -> None:
    """`ratio`: the isolated engine's tokens per second to the other one's, the median of the rounds."""
    path = request.getfixturevalue(model)
    options = {"max_num_seqs": STREAMS, "max_model_len": 128, "enable_prefix_caching": False}
    with AsyncLLM(path, **options) as here, AsyncLLM(path, isolate=True, **options) as there:
        rates: list[tuple[float, float]] = []

        def take_turns() -> None:
            rates.append(tuple(asyncio.run(tokens_per_second(engine, NEW_TOKENS)) for engine in (here, there)))

        benchmark.pedantic(take_turns, rounds=7, warmup_rounds=1)
    benchmark.extra_info["tokens_per_second"] = round(statistics.median(there for _, there in rates), 1)
    benchmark.extra_info["ratio"] = round(statistics.median(there / here for here, there in rates), 3)
