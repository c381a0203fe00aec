#!/usr/bin/env python3
"""Times generation with and without draft tokens, turn about, in one process.

Two workloads: a code edit (the prompt holds a file of some 1,500 tokens and asks for it once more, with one name
changed), and a text that repeats itself in a circle. Each runs at one stream and at 32, on two engines that differ in
`speculative_config` alone. Prints, for each, the medians of tokens per second, the ratio of pairs and what was drafted,
as a Markdown table; texts that differ end it. A small model does not copy a file to the letter, so the circle shows
what one that copies well would reach. A file whose block for multi-token prediction is always right and whose texts
go in circles (`make_model.py --mtp --tokenizer MODEL.gguf`) shows what both methods reach on text that repeats, and so
do a model and a draft model of one vocabulary that go in the same circles (`make_model.py --circles`):

    .venv/bin/python scripts/bench/bench_speculation.py MODEL.gguf
    .venv/bin/python scripts/bench/bench_speculation.py MTP.gguf --config '{"method": "mtp"}'
    .venv/bin/python scripts/bench/bench_speculation.py MODEL.gguf --config '{"model": "DRAFT.gguf"}'
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator

from rocmforge import LLM, SamplingParams, Stats

NAMES = ("price", "weight", "length", "amount", "speed", "angle", "height", "volume", "density", "power")
FIELDS = ("draft_tokens", "accepted_tokens")


def source(tokens_of: LLM, num_tokens: int) -> str:
    """A file of functions that differ in their names and numbers, of about so many tokens."""
    parts = ["import math\n"]
    for number in range(1, 1000):
        name, other = NAMES[number % len(NAMES)], NAMES[(3 * number + 1) % len(NAMES)]
        parts.append(
            f"\n\ndef {name}_of_{other}_{number}({other}, factor={number}):\n"
            f'    """Returns the {name} for a given {other}."""\n'
            f"    if {other} < {number * 7 % 100}:\n"
            f'        raise ValueError(f"{other}: got {{{other}}}")\n'
            f"    return math.sqrt({other} * factor) + {number * 13 % 1000}\n"
        )
        if len(tokens_of.tokenize("".join(parts))) >= num_tokens:
            break
    return "".join(parts)


def workloads(llm: LLM, num_tokens: int) -> Iterator[tuple[str, list[int]]]:
    text = source(llm, num_tokens)
    edit = f"The file:\n```python\n{text}```\n\nThe same file, in which `factor` is called `scale`:\n```python\n"
    yield "code edit", llm.tokenize(edit)
    line = "The quick brown fox jumps over the lazy dog and runs along the river.\n"
    yield "circle", llm.tokenize(line * 12)


def run(llm: LLM, prompt: list[int], streams: int, params: SamplingParams) -> tuple[float, list[list[int]]]:
    """Tokens per second from the last first token on, and the tokens."""
    # Each stream has a first token of its own, so that nothing but the prompt is alike.
    prompts = [[5 + stream, *prompt] for stream in range(streams)]
    outputs = llm.generate(prompts, params, progress=False)
    first = max(out.metrics.arrival_time + (out.metrics.time_to_first_token or 0) for out in outputs)
    last = max(out.metrics.arrival_time + (out.metrics.total_time or 0) for out in outputs)
    tokens = [list(out.outputs[0].token_ids) for out in outputs]
    return sum(map(len, tokens)) / (last - first), tokens


def drafted(stats: Stats) -> list[int]:
    return [getattr(stats, f"spec_decode_num_{field}") for field in FIELDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--file", type=int, default=1500, help="tokens of the file that is edited")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--config", type=json.loads, default={}, help="speculative_config, as JSON")
    args = parser.parse_args()
    streams = [int(count) for count in args.streams.split(",")]
    settings = {
        "device": args.device,
        "num_threads": args.threads,
        "max_num_seqs": max(streams),
        "max_model_len": args.file + args.tokens + 512,
    }
    params = SamplingParams(max_tokens=args.tokens, temperature=0.0, ignore_eos=True)
    with LLM(args.model, **settings) as plain, LLM(args.model, **settings, speculative_config=args.config) as drafting:
        print(plain.describe().partition(";")[0], file=sys.stderr)
        print(
            "| workload | streams | tok/s without | tok/s with | ratio, median (lowest to highest) | right / verified |"
        )
        print("|---|---:|---:|---:|---|---:|")
        for name, prompt in workloads(plain, args.file):
            for count in streams:
                before = drafted(drafting.stats())
                row = compare(plain, drafting, prompt, count, params, args.pairs)
                verified, right = (b - a for a, b in zip(before, drafted(drafting.stats()), strict=True))
                print(f"| {name} | {count} | {row} | {right} / {verified} |", flush=True)


def compare(plain: LLM, drafting: LLM, prompt: list[int], count: int, params: SamplingParams, pairs: int) -> str:
    speeds: tuple[list[float], list[float]] = ([], [])
    # The first pair fills the prefix caches, and is not counted.
    for pair in range(pairs + 1):
        order = [(plain, 0), (drafting, 1)]
        texts = {}
        for llm, place in order if pair % 2 == 0 else order[::-1]:
            speed, texts[place] = run(llm, prompt, count, params)
            if pair > 0:
                speeds[place].append(speed)
            time.sleep(0.2)
        if texts[0] != texts[1]:
            sys.exit("the texts differ")
    ratios = sorted(after / before for before, after in zip(*speeds, strict=True))
    without, with_drafts = (statistics.median(each) for each in speeds)
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return f"{without:.1f} | {with_drafts:.1f} | {spread}"


if __name__ == "__main__":
    main()
