#!/usr/bin/env python3
"""Plays an agent's day on a server: conversations at once, each of turns that add tokens to a history that grows.

A turn sends the whole history and reads the answer as it comes; the answer and new tokens are added to the history.
Histories are token ids; a bias makes every token of an answer the same one, so that a history is known whatever the
server says of its tokens. Between two turns an agent's tools run, for a time that is the same on each server; without
it (`--tools 0 0`) conversations of equal turns end their answers together, and all their prompts come at once. Beside
the conversations stands a prompt alone, on the idle server. Any server of OpenAI's completions that takes token ids can
be asked, llama.cpp's too:

    .venv/bin/python scripts/bench/bench_agents.py http://127.0.0.1:8000
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass

import httpx
import numpy as np

RANDOM = np.random.default_rng(0)


@dataclass(frozen=True)
class Turn:
    """The tokens and the time of a turn."""

    prompt: int
    """Tokens of its prompt."""
    cached: int
    """Tokens of it that came from the cache."""
    first: float
    """Seconds until the first token of the answer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the server's address, without /v1")
    parser.add_argument("--model", help="the name of its model, if it needs one")
    parser.add_argument("--conversations", type=int, default=4, help="at once")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--history", type=int, default=8000, help="tokens of the first prompt")
    parser.add_argument("--added", type=int, default=500, help="tokens that a turn adds, its answer among them")
    parser.add_argument("--answer", type=int, default=100, help="tokens of an answer")
    parser.add_argument(
        "--tools", type=float, nargs=2, default=(0.5, 1.5), help="seconds between turns, from one to the other"
    )
    parser.add_argument("--ids", type=int, nargs=2, default=(1000, 30000), help="token ids from one to below the other")
    asyncio.run(play(parser.parse_args()))


async def play(args: argparse.Namespace) -> None:
    """Plays all conversations, and prints what they took as a Markdown table."""

    def some(count: int) -> list[int]:
        """Token ids that no other text has in this order."""
        return RANDOM.integers(*args.ids, count).tolist()

    async with httpx.AsyncClient(base_url=args.url, timeout=600.0) as client:

        async def ask(history: list[int], answer: int, count: int) -> Turn:
            return await send(client, args.model, history, answer, count)

        async def converse(pauses: list[float]) -> list[Turn]:
            history, turns = some(args.history), []
            for pause in pauses:
                await asyncio.sleep(pause)
                [answer] = some(1)
                turns.append(await ask(history, answer, args.answer))
                history += [answer] * args.answer + some(args.added - args.answer)
            return turns

        # The first prompts of a server are slower than all others.
        alone = [await ask(some(args.added), args.ids[0], 2) for _ in range(9)][2:]
        pauses = RANDOM.uniform(*args.tools, (args.conversations, args.turns)).tolist()
        started = time.perf_counter()
        conversations = await asyncio.gather(*map(converse, pauses))
        seconds = time.perf_counter() - started
    later = [turn for turns in conversations for turn in turns[1:]]
    shares = [turn.cached / turn.prompt for turn in later]
    first, lonely = (statistics.median(turn.first for turn in turns) for turns in (later, alone))
    print("| | |\n|---|---:|")
    print(f"| prompts, tokens | {args.history} to {later[-1].prompt} |")
    print(f"| from the cache, of all tokens from the second turn on | {share(later):.1%} |")
    print(f"| the same, the turn with least | {min(shares):.1%} |")
    print(f"| first token, median, ms | {1000 * first:.0f} |")
    print(f"| first token, slowest of 20, ms | {1000 * slow([turn.first for turn in later]):.0f} |")
    print(f"| first token of {args.added} tokens alone, median, ms | {1000 * lonely:.0f} |")
    print(f"| ratio | {first / lonely:.2f} |")
    print(f"| the whole day, s | {seconds:.1f} |")


def share(turns: list[Turn]) -> float:
    """The share of all tokens of prompts that the server had."""
    return sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)


def slow(seconds: list[float]) -> float:
    """The time that one of 20 exceeds."""
    return statistics.quantiles(seconds, n=20)[-1]


async def send(client: httpx.AsyncClient, model: str | None, history: list[int], answer: int, count: int) -> Turn:
    """Sends a prompt and reads its answer, which is `answer` so many times.

    Raises:
        RuntimeError: The server gave an error, or another answer.
    """
    asked = {
        "prompt": history,
        "max_tokens": count,
        "temperature": 0.0,
        "ignore_eos": True,
        "logit_bias": {str(answer): 100},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body, first, usage = json.dumps(asked | ({"model": model} if model else {})), None, None
    started = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    async with client.stream("POST", "/v1/completions", content=body, headers=headers) as response:
        if response.status_code != httpx.codes.OK:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            first = first or time.perf_counter() - started
            usage = event.get("usage") or usage
    if first is None or usage is None or usage["completion_tokens"] != count:
        raise RuntimeError(f"the server gave no answer of {count} tokens, or does not count them: {usage}")
    details = usage.get("prompt_tokens_details") or {}
    return Turn(usage["prompt_tokens"], details.get("cached_tokens") or 0, first)


if __name__ == "__main__":
    main()
