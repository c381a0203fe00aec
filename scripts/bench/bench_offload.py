#!/usr/bin/env python3
"""Times what KV offloading gives and costs. Prints a JSON object.

Restart: an engine computes a conversation and is closed. Another one continues it from files. Its time to the first
token is compared with that of a third request, whose whole prefix is on the device.

Decoding: two engines decode in turns, one of them with host memory. Their KV caches are so small that each run evicts
the blocks of the one before, which the second engine copies to the host.

Beside a hit: a stream decodes while conversations that were evicted come back from host memory. Its longest times
between two tokens are compared with those while it runs alone.

    scripts/data/make_model.py qwen3.6-35b-a3b q4_k_m m.gguf
    scripts/bench/bench_offload.py m.gguf
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmforge import LLM, AsyncLLM, RequestOutput, SamplingParams

GIB = 1 << 30


def text(seed: str, length: int) -> list[int]:
    """A prompt of tokens that every vocabulary has."""
    rng = random.Random(seed)
    return [rng.randrange(300, 20_000) for _ in range(length)]


def ask(llm: LLM, prompt: Sequence[int], max_tokens: int) -> RequestOutput:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return llm.generate(list(prompt), params, progress=False)[0]


def figures(output: RequestOutput) -> dict[str, float | None]:
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens,
        "first_token_s": output.metrics.time_to_first_token,
    }


def restart(args: argparse.Namespace, settings: dict[str, Any], folder: Path) -> dict[str, object]:
    settings = {**settings, "kv_offload_dir": folder / "kv", "kv_offload_disk": 4 * args.memory * GIB}
    results: dict[str, object] = {}
    with LLM(args.model, **settings) as llm:
        ask(llm, text("warm-up", 500), 8)
        first = ask(llm, text("conversation", args.tokens), 64)
        results["computed"] = figures(first)
        started = time.monotonic()
    results["close_s"] = time.monotonic() - started
    conversation = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    started = time.monotonic()
    with LLM(args.model, **settings) as llm:
        results["load_s"] = time.monotonic() - started
        ask(llm, text("warm-up", 500), 8)
        results["from_files"] = figures(ask(llm, conversation + text("new", args.new), 1))
        results["from_device"] = figures(ask(llm, conversation + text("newer", args.new), 1))
        stats = llm.stats()
        results["files"] = {name: getattr(stats, f"kv_offload_disk_{name}") for name in ("read", "unreadable", "bytes")}
    return results


def speed(llm: LLM, args: argparse.Namespace, turn: int) -> float:
    """Tokens per second of all streams from the last first token on."""
    prompts = [text(f"{turn} {stream}", args.prompt) for stream in range(args.streams)]
    params = SamplingParams(temperature=0.0, max_tokens=args.decode, ignore_eos=True)
    outputs = llm.generate(prompts, params, progress=False)
    first = max(out.metrics.arrival_time + (out.metrics.time_to_first_token or 0) for out in outputs)
    last = max(out.metrics.arrival_time + (out.metrics.total_time or 0) for out in outputs)
    return args.streams * args.decode / (last - first)


def decoding(args: argparse.Namespace, settings: dict[str, Any]) -> dict[str, object]:
    without, with_host = [], []
    with LLM(args.model, **{**settings, "kv_offload_memory": 0}) as plain, LLM(args.model, **settings) as offloading:
        # The first turns fill the caches, and are not counted.
        for turn in range(args.warm_up + args.turns):
            pair = [(plain, without), (offloading, with_host)]
            for llm, speeds in pair if turn % 2 == 0 else pair[::-1]:
                speeds.append(speed(llm, args, turn))
            if turn + 1 == args.warm_up:
                before = offloading.stats()
        after = offloading.stats()
    counted = [speeds[args.warm_up :] for speeds in (without, with_host)]
    return {
        "without": [round(figure, 1) for figure in counted[0]],
        "with_host_memory": [round(figure, 1) for figure in counted[1]],
        "ratio": statistics.median(b / a for a, b in zip(*counted, strict=True)),
        "saved": after.kv_offload_saved - before.kv_offload_saved,
        "lost": after.kv_offload_lost - before.kv_offload_lost,
    }


async def beside(args: argparse.Namespace, settings: dict[str, Any]) -> dict[str, object]:
    # The last ones evict the first ones.
    length = args.tokens // 2
    greedy = {"temperature": 0.0, "ignore_eos": True}
    gaps: list[float] = []

    async def run(llm: AsyncLLM, prompt: list[int], max_tokens: int) -> RequestOutput:
        params = SamplingParams(max_tokens=max_tokens, **greedy)
        outputs = [output async for output in llm.generate(prompt, params)]
        return outputs[-1]

    async def decode(llm: AsyncLLM) -> None:
        last = None
        params = SamplingParams(max_tokens=settings["max_model_len"] - 64, **greedy)
        async for _ in llm.generate(text("stream", 32), params):
            now = time.perf_counter()
            if last is not None:
                gaps.append(now - last)
            last = now

    def longest() -> list[float]:
        return [round(1000 * gap, 2) for gap in sorted(gaps)[-5:]]

    async with AsyncLLM(args.model, **settings) as llm:
        prompts = [text(f"beside {number}", length) for number in range(4 * max(1, args.fill))]
        for prompt in prompts:
            await run(llm, prompt, 1)
        stream = asyncio.create_task(decode(llm))
        await asyncio.sleep(2)
        alone = longest()
        gaps.clear()
        before = llm.stats()
        hits = [figures(await run(llm, prompt, 1)) for prompt in prompts[:4]]
        after = llm.stats()
        results = {
            "longest_gaps_alone_ms": alone,
            "longest_gaps_beside_hits_ms": longest(),
            "hits": hits,
            "loaded": after.kv_offload_loaded - before.kv_offload_loaded,
        }
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kv-cache", type=float, default=4, help="GiB of KV cache")
    parser.add_argument("--memory", type=int, default=16, help="GiB of host memory")
    parser.add_argument("--tokens", type=int, default=32_000, help="tokens of the conversation")
    parser.add_argument("--new", type=int, default=100, help="new tokens after the restart")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=2000, help="tokens of a stream's prompt")
    parser.add_argument("--decode", type=int, default=512, help="tokens that each stream decodes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--fill", type=int, default=4, help="times four conversations that come before the hits")
    parser.add_argument("--warm-up", type=int, default=2, help="turns that are not counted")
    parser.add_argument("--folder", type=Path, help="where the files go for a while; by default a temporary folder")
    args = parser.parse_args()
    settings = {
        "device": args.device,
        "max_num_seqs": args.streams,
        "max_model_len": args.tokens + args.new + 256,
        "kv_cache_memory": int(args.kv_cache * GIB),
        "kv_offload_memory": args.memory * GIB,
    }
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        results = {
            "restart": restart(args, settings, Path(folder)),
            "decoding": decoding(args, settings),
            "beside_a_hit": asyncio.run(beside(args, settings)),
        }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
