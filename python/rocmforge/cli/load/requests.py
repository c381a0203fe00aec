"""A load of many requests on a server or on an engine: when each is sent, and when each piece of its answer comes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rocmforge import AsyncLLM, RocmForgeError, SamplingParams
from rocmforge.cli.common import completed
from rocmforge.cli.load.lengths import Lengths

# Tokens of prompts: words of nearly every vocabulary, and no control tokens.
_FIRST_TOKEN, _NUM_TOKENS = 3, 250

Ask = Callable[[list[int], int], AsyncIterator[int]]
"""Generates a number of tokens from a prompt's token ids; yields the number of tokens so far with each piece."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests, and when they are sent."""

    lengths: Sequence[Lengths]
    """Tokens of each request."""
    max_concurrency: int | None
    """Requests that are under way at once, at most."""
    request_rate: float
    """Requests per second, at random times (Poisson); infinite sends them all at once."""
    seed: tuple[int, int]
    """The run's seed and the index of this load in the run. Prompts and times are drawn from both, so that two loads
    share no prompts, which a prefix cache would answer."""


@dataclass(slots=True)
class Answered:
    """One request. Times are in seconds."""

    input_len: int
    sent: float
    pieces: list[float] = field(default_factory=list)
    """When each piece of the answer came."""
    tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.pieces[0] - self.sent

    @property
    def tpot(self) -> float:
        """Time per token after the first one; 0 without any."""
        return (self.pieces[-1] - self.pieces[0]) / (self.tokens - 1) if self.tokens > 1 else 0.0

    @property
    def itl(self) -> list[float]:
        """Times between two pieces."""
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]

    @property
    def e2el(self) -> float:
        """Time to the last token."""
        return self.pieces[-1] - self.sent


class Outcome(NamedTuple):
    """The answers to a load."""

    answers: list[Answered]
    duration: float
    """Seconds from the start to the last answer."""


async def run_load(ask: Ask, load: Load, done: Callable[[int], None] = lambda _: None) -> Outcome:
    """Sends the requests and waits for the answers.

    Args:
        ask: Generates from one prompt.
        load: The requests.
        done: Is told how many have ended.
    """
    source = np.random.default_rng(load.seed)
    prompts: list[list[int]] = [
        source.integers(_FIRST_TOKEN, _FIRST_TOKEN + _NUM_TOKENS, lengths.input).tolist() for lengths in load.lengths
    ]
    # An infinite rate leaves no time between requests.
    times: list[float] = np.cumsum(source.exponential(1 / load.request_rate, len(prompts))).tolist()
    room = asyncio.Semaphore(load.max_concurrency or len(prompts))
    ended = 0

    async def one(prompt: list[int], max_tokens: int) -> Answered:
        nonlocal ended
        async with room:
            answered = await _answered(ask, prompt, max_tokens)
        ended += 1
        done(ended)
        return answered

    started = time.perf_counter()
    tasks = []
    for prompt, lengths, due in zip(prompts, load.lengths, times, strict=True):
        if (wait := started + due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(prompt, lengths.output)))
    answers = await asyncio.gather(*tasks)
    return Outcome(answers, time.perf_counter() - started)


async def _answered(ask: Ask, prompt: list[int], max_tokens: int) -> Answered:
    answered = Answered(len(prompt), time.perf_counter())
    try:
        async for tokens in ask(prompt, max_tokens):
            if tokens > answered.tokens:
                answered.pieces.append(time.perf_counter())
            # A server that counts only at the end may correct the number of tokens.
            answered.tokens = tokens
    except (OSError, ValueError, RuntimeError, RocmForgeError) as error:
        answered.error = str(error) or type(error).__name__
    if answered.error is None and not answered.pieces:
        answered.error = "the answer was empty"
    return answered


def of_engine(engine: AsyncLLM, params: SamplingParams) -> Ask:
    """Asks an engine in this process."""
    pieces = params.replace(output_kind="delta")

    async def ask(prompt: list[int], max_tokens: int) -> AsyncIterator[int]:
        tokens = 0
        async for output in engine.generate(prompt, pieces.replace(max_tokens=max_tokens)):
            completed([output])
            tokens += len(output.outputs[0].token_ids)
            yield tokens

    return ask
