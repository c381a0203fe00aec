#!/usr/bin/env python3
"""Measures prompts with images in one process, as a Markdown table.

Chats with an image each at the same time; the time to the first token of a new image, of a second question about the
same image, and of a second question after as much text; and how long the encoder delays the tokens of another request.
The model needs an image encoder beside it: `make_model.py` and `make_encoder.py` write both.

    .venv/bin/python scripts/bench/bench_images.py MODEL.gguf --streams 16 --side 1024
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from rocmforge import LLM, AsyncLLM, Image, SamplingParams

QUESTION = 24
ANSWER = 128


def image(seed: int, side: int) -> Image:
    """A picture that no other seed gives."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.from_rgb(side, side, pixels.tobytes())


def question(seed: int, before: list[int]) -> list[int]:
    """A prompt that ends with tokens of its own."""
    tokens = np.random.default_rng(1000 + seed).integers(10, 90, QUESTION)
    return [*before, *tokens.tolist()]


def first_token(llm: LLM, prompt: list[int], images: list[Image]) -> float:
    """The time to the first token in milliseconds."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    start = time.perf_counter()
    llm.generate([{"prompt_token_ids": prompt, "images": images}], params, progress=False)
    return 1000 * (time.perf_counter() - start)


def chats(llm: LLM, placeholder: int, streams: int, side: int) -> tuple[float, float]:
    """Tokens per second of chats with an image each, and the median time to the first token in milliseconds."""
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    prompts: Any = [
        {"prompt_token_ids": question(seed, [5, placeholder]), "images": [image(seed, side)]} for seed in range(streams)
    ]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, progress=False)
    seconds = time.perf_counter() - start
    return streams * ANSWER / seconds, 1000 * statistics.median(out.metrics.time_to_first_token for out in outputs)


async def delay(path: Path, placeholder: int, side: int, options: dict[str, Any]) -> tuple[float, float]:
    """The median and the longest time between two tokens of a text, while images of others are encoded."""
    llm = await AsyncLLM.load(path, **options)
    params = SamplingParams(temperature=0, max_tokens=600, ignore_eos=True)
    gaps: list[float] = []

    async def others() -> None:
        for seed in range(8):
            await asyncio.sleep(0.1)
            prompt: Any = {"prompt_token_ids": question(seed, [5, placeholder]), "images": [image(100 + seed, side)]}
            one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
            async for _ in llm.generate(prompt, one):
                pass

    task = asyncio.create_task(others())
    last = 0.0
    async for _ in llm.generate(question(0, [7]), params):
        now = time.perf_counter()
        gaps.append(now - last)
        last = now
    await task
    llm.close()
    return 1000 * statistics.median(gaps[2:]), 1000 * max(gaps[2:])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--side", type=int, default=1024, help="pixels of an image's side")
    parser.add_argument("--placeholder", default="<|image_pad|>")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    options: dict[str, Any] = {"device": args.device, "max_model_len": 8192}
    with LLM(args.model, **options) as llm:
        (placeholder,) = llm.tokenizer.encode(args.placeholder, add_special=False, parse_special=True)
        tokens = llm.image_tokens(image(0, args.side))
        first_token(llm, question(0, [5, placeholder]), [image(50, args.side)])
        text = (list(range(10, 90)) * (tokens // 80 + 1))[:tokens]
        seen, read = [image(51, args.side)], [5, *text]
        asked = [question(seed, [5, placeholder]) for seed in range(1, 7)]
        about_text = [question(seed, read) for seed in range(6)]
        rows = [("image, the first question", first_token(llm, asked[0], seen))]
        rows += [("image, another question", first_token(llm, prompt, seen)) for prompt in asked[1:]]
        first_token(llm, about_text[0], [])
        rows += [("as much text, another question", first_token(llm, prompt, [])) for prompt in about_text[1:]]
        rate, first = chats(llm, placeholder, args.streams, args.side)
        stats = llm.stats()
    median, longest = asyncio.run(delay(args.model, placeholder, args.side, options))
    print(f"| {args.side} x {args.side} pixels, {tokens} tokens | |\n|---|---:|")
    for name in dict.fromkeys(name for name, _ in rows):
        times = [ms for other, ms in rows if other == name]
        print(f"| time to the first token, {name} | {statistics.median(times):.1f} ms |")
    print(f"| {args.streams} chats of {ANSWER} tokens, an image each | {rate:.0f} tokens/s |")
    print(f"| median time to the first token of these | {first:.0f} ms |")
    print(f"| the encoder, per image | {1000 * stats.image_encoder_seconds * tokens / stats.image_tokens:.1f} ms |")
    print(f"| time between two tokens of a text beside images: median, longest | {median:.2f}, {longest:.2f} ms |")


if __name__ == "__main__":
    main()
