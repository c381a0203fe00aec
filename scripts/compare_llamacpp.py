#!/usr/bin/env python3
"""Times rocmforge and llama.cpp on one GGUF file, turn about, and prints medians and ratios as a Markdown table.

Both measure the same rows: `ppN`, tokens per second of a prompt of N; `tg`, of decoding one sequence; `tgB`, summed
over B sequences, each after 32 tokens of context. llama.cpp runs through the package llama-cpp-python, in a Python of
its own so that it can be built for the machine:

    python3 -m venv /tmp/llamacpp && CMAKE_ARGS=-DGGML_NATIVE=ON /tmp/llamacpp/bin/pip install llama-cpp-python
    .venv/bin/python scripts/compare_llamacpp.py MODEL.gguf --llamacpp-python /tmp/llamacpp/bin/python
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

CONTEXT_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-p", "--prompt", default="128,512", help="prompt lengths")
    parser.add_argument("-n", "--new-tokens", type=int, default=64, help="decode steps")
    parser.add_argument("-b", "--batch", default="1,8,16", help="sequences decoded together")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine")
    parser.add_argument("--llamacpp-python", help="the Python that has llama-cpp-python")
    parser.add_argument("--llamacpp-only", action="store_true", help="time llama.cpp once, in this Python; print JSON")
    args = parser.parse_args()
    if args.llamacpp_only:
        print(json.dumps(time_llamacpp(args)))
    elif args.llamacpp_python:
        compare(args)
    else:
        parser.error("--llamacpp-python is needed: the Python that has llama-cpp-python")


def compare(args: argparse.Namespace) -> None:
    common = ["-t", str(args.threads), "-p", args.prompt, "-n", str(args.new_tokens), "-b", args.batch]
    ours = [sys.executable, "-m", "rocmforge", "bench", "--model", args.model, *common, "-r", "3", "--json"]
    theirs = [args.llamacpp_python, __file__, args.model, *common, "--llamacpp-only"]
    runs: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for _ in range(args.rounds):
        for command, results in zip((ours, theirs), runs, strict=True):
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            report = json.loads(done.stdout)
            # Ours also says how far the repetitions lie apart, and on what they ran.
            speeds = report.get("results", report)
            results.append(
                {row: speed["median"] if isinstance(speed, dict) else speed for row, speed in speeds.items()}
            )
    print("| row | rocmforge, tok/s | llama.cpp, tok/s | ratio, median (lowest to highest of a turn) |")
    print("|---|---|---|---|")
    for row in runs[0][0]:
        mine, other = ([result[row] for result in results] for results in runs)
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {row} | {statistics.median(mine):.0f} | {statistics.median(other):.0f} | {spread} |")


def time_llamacpp(args: argparse.Namespace) -> dict[str, float]:
    import llama_cpp as lc  # noqa: PLC0415  the one of the two Pythons that has it

    quiet = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model = lc.llama_model_load_from_file(args.model.encode(), lc.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp could not load {args.model}")

    def new_context(tokens: int, sequences: int) -> object:
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = tokens, 2048, 512, sequences
        params.n_threads = params.n_threads_batch = args.threads
        params.kv_unified = False
        return lc.llama_init_from_model(model, params)

    def decode(context: object, batch: object, entries: Sequence[tuple[int, int, int, bool]]) -> None:
        """`entries`: token, position, sequence, whether its logits are wanted."""
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        if lc.llama_decode(context, batch):
            sys.exit("llama_decode failed")
        lc.llama_synchronize(context)

    def prompt(length: int, sequence: int) -> list[tuple[int, int, int, bool]]:
        return [(100 + i % 1000, i, sequence, i == length - 1) for i in range(length)]

    def median_seconds(tokens: int, sequences: int, prepare: list, steps: list) -> float:
        context, batch, times = new_context(tokens, sequences), lc.llama_batch_init(max(512, tokens), 0, 1), []
        for _ in range(4):
            lc.llama_memory_clear(lc.llama_get_memory(context), True)
            for entries in prepare:
                decode(context, batch, entries)
            start = time.perf_counter()
            for entries in steps:
                decode(context, batch, entries)
            times.append(time.perf_counter() - start)
        lc.llama_batch_free(batch)
        lc.llama_free(context)
        return statistics.median(times[1:])

    rows = {}
    for length in map(int, args.prompt.split(",")):
        rows[f"pp{length}"] = length / median_seconds(max(length, 512), 1, [], [prompt(length, 0)])
    for count in map(int, args.batch.split(",")):
        steps = [
            [(200 + i, CONTEXT_TOKENS + i, sequence, True) for sequence in range(count)] for i in range(args.new_tokens)
        ]
        prepare = [prompt(CONTEXT_TOKENS, sequence) for sequence in range(count)]
        seconds = median_seconds(count * (2 * CONTEXT_TOKENS + args.new_tokens), count, prepare, steps)
        rows["tg" if count == 1 else f"tg{count}"] = count * args.new_tokens / seconds
    return {row: round(value, 2) for row, value in rows.items()}


if __name__ == "__main__":
    main()
