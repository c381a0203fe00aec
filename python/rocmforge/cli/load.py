"""A load of many requests on a server or on an engine, and how long each of its parts takes.

The names and the definitions are those of vLLM's `vllm bench serve`: TTFT is the time to the first token, TPOT the
time per token after it, ITL the time between two pieces of an answer, E2EL the time to the last one.
"""

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import numpy as np

from rocmforge import AsyncLLM, SamplingParams

# Tokens of prompts: words of nearly every vocabulary, and no control tokens.
_FIRST_TOKEN, _NUM_TOKENS = 3, 250

Ask = Callable[[list[int]], AsyncIterator[int]]
"""Generates from a prompt's tokens; yields the number of tokens so far with each piece that comes."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests, and when they are sent."""

    num_prompts: int
    max_concurrency: int | None
    """Requests that are under way at once, at most."""
    request_rate: float
    """Requests per second, at random times (Poisson); infinite sends them all at once."""
    input_len: int
    output_len: int
    seed: int


@dataclass(slots=True)
class Answered:
    """One request. Times are in seconds."""

    sent: float
    pieces: list[float] = field(default_factory=list)
    """When each piece of the answer came."""
    tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds over all requests, or over all pieces."""

    mean: float
    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Times":
        """Summarises times; zeros where there are none."""
        if not seconds:
            return cls(0.0, 0.0, 0.0, 0.0)
        ordered = sorted(seconds)

        def part(share: float) -> float:
            return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

        values = (statistics.fmean(ordered), statistics.median(ordered), part(0.9), part(0.99))
        return cls(*(round(1000 * value, 3) for value in values))


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The figures of one load."""

    completed: int
    failed: int
    errors: list[str]
    """The messages of failed requests, each once."""
    duration: float
    input_tokens: int
    output_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    ttft_ms: Times
    tpot_ms: Times
    itl_ms: Times
    e2el_ms: Times


async def run_load(ask: Ask, load: Load, done: Callable[[int], None] = lambda _: None) -> LoadReport:
    """Sends the requests and waits for the answers.

    Args:
        ask: Generates from one prompt.
        load: The requests.
        done: Is told how many have ended.
    """
    source = np.random.default_rng(load.seed)
    tokens = source.integers(_FIRST_TOKEN, _FIRST_TOKEN + _NUM_TOKENS, (load.num_prompts, load.input_len))
    prompts: list[list[int]] = tokens.tolist()
    # An infinite rate leaves no time between requests.
    waits: list[float] = source.exponential(1 / load.request_rate, load.num_prompts).tolist()
    room = asyncio.Semaphore(load.max_concurrency or load.num_prompts)
    ended = 0

    async def one(prompt: list[int]) -> Answered:
        nonlocal ended
        async with room:
            answered = await _answered(ask, prompt)
        ended += 1
        done(ended)
        return answered

    started = time.perf_counter()
    tasks = []
    for prompt, wait in zip(prompts, waits, strict=True):
        if wait:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(prompt)))
    answers = await asyncio.gather(*tasks)
    return _report(load, answers, time.perf_counter() - started)


async def _answered(ask: Ask, prompt: list[int]) -> Answered:
    answered = Answered(time.perf_counter())
    try:
        async for tokens in ask(prompt):
            if tokens > answered.tokens:
                answered.pieces.append(time.perf_counter())
                answered.tokens = tokens
    except (OSError, ValueError, RuntimeError) as error:
        answered.error = str(error) or type(error).__name__
    if answered.error is None and not answered.pieces:
        answered.error = "the answer was empty"
    return answered


def _report(load: Load, answers: list[Answered], duration: float) -> LoadReport:
    good = [one for one in answers if one.error is None]
    output_tokens = sum(one.tokens for one in good)
    input_tokens = load.input_len * len(good)
    return LoadReport(
        completed=len(good),
        failed=len(answers) - len(good),
        errors=sorted({one.error for one in answers if one.error is not None}),
        duration=round(duration, 3),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        requests_per_second=round(len(good) / duration, 3),
        output_tokens_per_second=round(output_tokens / duration, 2),
        total_tokens_per_second=round((input_tokens + output_tokens) / duration, 2),
        ttft_ms=Times.of([one.pieces[0] - one.sent for one in good]),
        tpot_ms=Times.of([(one.pieces[-1] - one.pieces[0]) / (one.tokens - 1) for one in good if one.tokens > 1]),
        itl_ms=Times.of([b - a for one in good for a, b in zip(one.pieces, one.pieces[1:], strict=False)]),
        e2el_ms=Times.of([one.pieces[-1] - one.sent for one in good]),
    )


def of_engine(engine: AsyncLLM, output_len: int) -> Ask:
    """Asks an engine in this process."""
    params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True, output_kind="delta")

    async def ask(prompt: list[int]) -> AsyncIterator[int]:
        tokens = 0
        async for output in engine.generate(prompt, params):
            tokens += len(output.outputs[0].token_ids)
            yield tokens

    return ask
