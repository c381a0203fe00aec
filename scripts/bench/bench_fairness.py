#!/usr/bin/env python3
"""Times one client's first tokens with and without a crowd of another client's long prompts, turn about.

A server of its own serves the model to two API keys. One client sends a prompt, waits for its answer and, after a
pause, sends the next one; in every second turn the other client has sent a thousand long prompts before, all at once.
Prints medians and their ratio as a Markdown table. The server has its default settings, or those of the variables
(`ROCMFORGE_…`):

    .venv/bin/python scripts/bench/bench_fairness.py MODEL.gguf
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rocmforge.cli.load.client import of_server
from rocmforge.cli.load.requests import Ask

KEYS = {"one": "key-of-one", "many": "key-of-many"}
# Statistics of the engine concern all clients.
ADMIN_KEY = "admin"
SETTINGS = {"temperature": 0.0, "ignore_eos": True}
WAIT_SECONDS = 120.0
RANDOM = np.random.default_rng(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-p", "--prompt", default="64,512,1024", help="prompt lengths of the one client")
    parser.add_argument("--crowd", type=int, default=1000, help="prompts of the other client")
    parser.add_argument("--crowd-len", type=int, default=1024, help="their length")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds from an answer of the one client on")
    parser.add_argument("--requests", type=int, default=10, help="requests of each length in a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns without and with the crowd")
    args = parser.parse_args()
    # Each of the crowd's requests has a connection.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with serving(args.model, args.crowd) as url:
        asyncio.run(compare(url, args))


@contextmanager
def serving(model: str, crowd: int) -> Iterator[str]:
    """Runs the server; gives its address."""
    keys = [word for key in KEYS.values() for word in ("--api-key", key)]
    command = [sys.executable, "-m", "rocmforge", "serve", model, "--port", "0", "--admin-key", ADMIN_KEY, *keys]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log"
        with file.open("wb") as log:
            process = subprocess.Popen([*command, "--max-queue-size", str(2 * crowd)], stderr=log)
        try:
            started = time.monotonic()
            while (found := re.search(r"listening on (\S+)", file.read_text())) is None:
                if process.poll() is not None or time.monotonic() - started > WAIT_SECONDS:
                    sys.exit(f"the server did not start: {file.read_text()}")
                time.sleep(0.1)
            yield found[1]
        finally:
            process.terminate()
            process.wait()


async def compare(url: str, args: argparse.Namespace) -> None:
    lengths = [int(length) for length in args.prompt.split(",")]
    medians: dict[tuple[int, bool], list[float]] = {}
    one = of_server(url, None, KEYS["one"], SETTINGS)
    await first_tokens(one, max(lengths), 2, 0.0)
    for _ in range(args.rounds):
        for length in lengths:
            seconds = await first_tokens(one, length, args.requests, args.pause)
            medians.setdefault((length, False), []).append(statistics.median(seconds))
        async with crowd(url, args.crowd, args.crowd_len):
            for length in lengths:
                seconds = await first_tokens(one, length, args.requests, args.pause)
                medians.setdefault((length, True), []).append(statistics.median(seconds))
    print("| prompt | alone, ms | beside the crowd, ms | ratio, median (lowest to highest of a turn) |")
    print("|---:|---:|---:|---|")
    for length in lengths:
        alone, beside = medians[length, False], medians[length, True]
        ratios = sorted(after / before for before, after in zip(alone, beside, strict=True))
        times = (1000 * statistics.median(each) for each in (alone, beside))
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {length} | {' | '.join(f'{each:.0f}' for each in times)} | {spread} |")


async def first_tokens(ask: Ask, length: int, count: int, pause: float) -> list[float]:
    """Seconds until the first token of each of several prompts, one after the other, with pauses before them."""
    seconds = []
    for _ in range(count):
        await asyncio.sleep(pause)
        started = time.perf_counter()
        pieces = [time.perf_counter() - started async for _ in ask(prompt(length), 1)]
        seconds.append(pieces[0])
    return seconds


@asynccontextmanager
async def crowd(url: str, count: int, length: int) -> AsyncIterator[None]:
    """Keeps the other client's requests before the server; those that have not ended are cancelled at the end."""
    ask = of_server(url, None, KEYS["many"], SETTINGS)

    async def one() -> None:
        async for _ in ask(prompt(length), 64):
            pass

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    try:
        await until(url, lambda under_way: under_way >= count - sum(task.done() for task in tasks))
        yield
        num_waiting = (await stats(url))["num_waiting"]
        if not num_waiting:
            sys.exit("the crowd was gone before the end: raise --crowd")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await until(url, lambda under_way: under_way == 0)


async def until(url: str, holds: Callable[[int], bool]) -> None:
    """Waits until something holds of the number of requests that the engine has."""
    while not holds((now := await stats(url))["num_running"] + now["num_waiting"]):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def stats(url: str) -> dict[str, Any]:
    """The engine's gauges and counters."""
    request = urllib.request.Request(f"{url}/v1/engine/stats", headers={"x-api-key": ADMIN_KEY})

    def read() -> dict[str, Any]:
        with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
            return json.load(answer)

    return await asyncio.to_thread(read)


def prompt(length: int) -> list[int]:
    """Token ids that no other prompt begins with."""
    return RANDOM.integers(3, 253, length).tolist()


if __name__ == "__main__":
    main()
