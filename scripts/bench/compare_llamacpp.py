#!/usr/bin/env python3
"""Times rocmforge and llama.cpp on the CPU, turn about, and prints medians and ratios as a Markdown table.

Both measure the same rows: `ppN`, tokens per second of a prompt of N; `tg`, of decoding one sequence; `tgB`, summed
over B sequences, each after 32 tokens of context; `tg @ dN`, behind N tokens. llama.cpp runs through the package
llama-cpp-python, in a Python of its own so that it can be built for the machine:

    python3 -m venv /tmp/llamacpp && CMAKE_ARGS=-DGGML_NATIVE=ON /tmp/llamacpp/bin/pip install llama-cpp-python
    .venv/bin/python scripts/bench/compare_llamacpp.py MODEL.gguf --llamacpp-python /tmp/llamacpp/bin/python

or any program with the options of llama-bench does, that of ik_llama.cpp too, whose `tg` follows an empty context:

    .venv/bin/python scripts/bench/compare_llamacpp.py MODEL.gguf -b 1 --llama-bench "/tmp/ik/llama-bench -rtr 1"
"""

import argparse
import ctypes
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTEXT_TOKENS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-p", "--prompt", default="128,512", help="prompt lengths")
    parser.add_argument("-n", "--new-tokens", type=int, default=64, help="decode steps")
    parser.add_argument("-b", "--batch", default="1,8,16", help="sequences decoded together")
    parser.add_argument("-d", "--depth", type=int, help="also decode behind so many tokens; with --llama-bench")
    parser.add_argument("-r", "--reps", type=int, default=3, help="repetitions of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine")
    parser.add_argument("--ours", default="", help="further options of rocmforge bench")
    parser.add_argument("--llamacpp-python", help="the Python that has llama-cpp-python")
    parser.add_argument("--llama-bench", help="llama-bench, with further options of its own")
    parser.add_argument("--llamacpp-only", action="store_true", help="time llama.cpp once, in this Python; print JSON")
    args = parser.parse_args()
    if args.llamacpp_only:
        print(json.dumps(time_llamacpp(args, args.models[0])))
        return
    if (args.llamacpp_python is None) == (args.llama_bench is None):
        parser.error("one of --llamacpp-python (the Python that has llama-cpp-python) and --llama-bench is needed")
    if args.depth and not args.llama_bench:
        parser.error("--depth is measured with --llama-bench alone")
    print("| model | row | rocmforge, tok/s | llama.cpp, tok/s | ratio, median (lowest to highest of a turn) |")
    print("|---|---|---:|---:|---|")
    for model in args.models:
        for row in compare(args, model):
            print(f"| {Path(model).stem} | {row} |", flush=True)


@dataclass(frozen=True)
class Compared:
    """Tokens per second of both engines in a row, one figure per turn."""

    row: str
    ours: list[float]
    theirs: list[float]

    def __str__(self) -> str:
        ratios = [a / b for a, b in zip(self.ours, self.theirs, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        return f"{self.row} | {statistics.median(self.ours):,.1f} | {statistics.median(self.theirs):,.1f} | {spread}"


def compare(args: argparse.Namespace, model: str) -> list[Compared]:
    """The rows of one model that both engines measured."""
    common = ["-t", str(args.threads), "-p", args.prompt, "-n", str(args.new_tokens), "-r", str(args.reps)]
    ours = [sys.executable, "-m", "rocmforge", "bench", "--device", "cpu", "-m", model, *common, "-b", args.batch]
    ours += ["--depth", f"{CONTEXT_TOKENS},{args.depth}"] if args.depth else []
    ours += ["--json", *shlex.split(args.ours)]
    if args.llama_bench:
        theirs = [*shlex.split(args.llama_bench), "-m", model, *common, "-o", "json"]
        theirs += ["-gp", f"{args.depth},{args.new_tokens}"] if args.depth else []
        read = llama_bench_rows
    else:
        theirs = [args.llamacpp_python, __file__, model, *common, "-b", args.batch, "--llamacpp-only"]
        read = json.loads
    runs: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for _ in range(args.rounds):
        for command, read_rows, results in zip((ours, theirs), (our_rows, read), runs, strict=True):
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results.append(read_rows(done.stdout))
    rows = [row for row in runs[0][0] if row in runs[1][0]]
    return [Compared(row, *([result[row] for result in results] for results in runs)) for row in rows]


def our_rows(text: str) -> dict[str, float]:
    """The medians that `rocmforge bench --json` prints, which also says how far repetitions lie apart, and on what."""
    return {row: speed["median"] for row, speed in json.loads(text)["results"].items()}


def llama_bench_rows(text: str) -> dict[str, float]:
    """The medians that `llama-bench -o json` prints, by our names of the rows."""
    rows = {}
    for test in json.loads(text):
        prompt, new = test["n_prompt"], test["n_gen"]
        row = f"pp{prompt}" if not new else f"tg @ d{prompt}" if prompt else "tg"
        rows[row] = statistics.median(test["samples_ts"])
    return rows


def time_llamacpp(args: argparse.Namespace, path: str) -> dict[str, float]:
    import llama_cpp as lc  # noqa: PLC0415  the one of the two Pythons that has it

    quiet = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
    if not model:
        sys.exit(f"llama.cpp could not load {path}")

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
        for _ in range(args.reps + 1):
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
