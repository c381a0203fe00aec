#!/usr/bin/env python3
"""Measures the engine on a GPU: makes models of real shapes, runs `rocmforge bench` on each, prints one table.

    bench_gpu.py [--models DIR] [--rows llama-3-8b:q4_k_m,...] [--prompts 512,2048] [--batches 1,8,32,64,256]
    bench_gpu.py --served 512x512x128 [--models DIR] [--rows llama-3-8b:q4_k_m,...] [--tokenizer GGUF]

Each row is one process: a model is loaded once and measured at all prompt lengths and batch sizes. With --served: so
many requests of so many tokens of prompt and of output, all handed over at once; tokens per second of output, from the
first request to the last token, with each of several sampling settings. Each of these figures is a process of its own,
`rocmforge bench --serve`.
"""

import argparse
import datetime as dt
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAKE_MODEL = Path(__file__).parents[1] / "data" / "make_model.py"
START = """
import json, statistics, sys, time
from rocmforge import LLM, SamplingParams
started = time.perf_counter()
llm = LLM(sys.argv[1], device=sys.argv[2], enable_prefix_caching=False)
load = time.perf_counter() - started
params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
def first_token():
    started = time.perf_counter()
    llm.generate([3 + i % 250 for i in range(512)], params, progress=False)
    return time.perf_counter() - started
first_token()
print(json.dumps({"load": load, "first_token": statistics.median(first_token() for _ in range(5))}))
llm.close()
"""
# Sampling settings to serve with, as fields of a request, by their column's name: the others are compared with the
# first.
SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.1},
    "repetition, top-k": {"repetition_penalty": 1.1, "top_k": 40, "top_p": 0.9},
    "presence, logprobs": {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "logprobs": 2},
    "min_tokens, bias": {"temperature": 0.0, "min_tokens": 32, "logit_bias": {"5": -10.0}},
    "temperature 1": {"temperature": 1.0},
    "temperature 0.8, top-p, repetition": {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1},
    "temperature 0.8, top-p, top-k": {"temperature": 0.8, "top_p": 0.95, "top_k": 50},
}
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "kind": {"enum": ["alpha", "beta", "gamma"]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
# Texts of a form, which models with a tokenizer can write. None of them can end before the last token.
FORMS: dict[str, dict[str, object]] = {
    "schema": {"json": {"type": "array", "items": ITEM, "minItems": 1000}, "disable_any_whitespace": True},
    "regex": {"regex": "([a-z]+ [0-9]{2,5}, ){1000}"},
}
ROWS = "llama-3-8b:q4_k_m,llama-3-8b:q8_0,llama-3-8b:f16,qwen2.5-0.5b:q4_0"


def model_file(folder: Path, name: str, tokenizer: str | None = None) -> Path:
    """The model `shape:recipe`, made when it is not there; with the tokenizer of another file, if one is given."""
    shape, recipe = name.split(":")
    path = folder / f"{shape}.{recipe}{'.text' if tokenizer else ''}.gguf"
    if not path.exists():
        started = time.monotonic()
        part = path.with_suffix(".part")
        options = ["--tokenizer", tokenizer] if tokenizer else []
        subprocess.run([sys.executable, MAKE_MODEL, shape, recipe, part, *options], check=True)
        part.rename(path)
        print(f"made {path.name}, {path.stat().st_size / 1e9:.2f} GB, {time.monotonic() - started:.0f} s", flush=True)
    return path


def run(what: str, command: Sequence[str | Path]) -> Any:
    """The figures that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"{what} ended with {done.returncode}")
    return json.loads(done.stdout)


def measure(args: argparse.Namespace, path: Path) -> dict[str, float]:
    """The figures of one model, tokens per second."""
    command = [sys.executable, "-m", "rocmforge", "bench", "--model", str(path), "--device", args.device, "--json"]
    command += ["--prompt", args.prompts, "--batch", args.batches, "--decode", str(args.decode), *args.extra]
    results = run(" ".join(command), command)["results"]
    return {name: speeds["median"] for name, speeds in results.items()}


def start(path: Path, device: str) -> dict[str, float]:
    """Seconds to load a model from the page cache, and to the first token of a prompt of 512."""
    return run(f"loading {path}", [sys.executable, "-c", START, path, device])


def served(args: argparse.Namespace, path: Path, sequences: str, fields: dict[str, object]) -> tuple[float, int]:
    """Output tokens per second with requests that have these fields, the median of all rounds; and rows of logits that
    were read on their own."""
    requests, prompt, output = args.served.split("x")
    command = [
        sys.executable,
        "-m",
        "rocmforge",
        "bench",
        "--serve",
        "--model",
        path,
        "--device",
        args.device,
        "--json",
    ]
    command += ["--num-prompts", requests, "--input-len", prompt, "--output-len", output, "--max-num-seqs", sequences]
    # The first round warms up.
    command += ["--num-warmups", requests, "--request-rate", ",".join(["inf"] * args.rounds)]
    rows = run(f"serving {path}", [*command, "--extra-body", json.dumps(fields), *args.extra])["rows"]
    speed = statistics.median(row["output_throughput"] for row in rows)
    return speed, sum(row["logits_rows_fetched"] for row in rows)


def print_served(args: argparse.Namespace) -> None:
    """Prints a row for each model and number of sequences: output tokens per second, and the first column's share."""
    settings = SETTINGS.copy()
    if args.tokenizer:
        settings |= {name: {"temperature": 0.0, "structured_outputs": form} for name, form in FORMS.items()}
    print(f"| model, requests at once | {' | '.join(settings)} | rows fetched |\n|---|{'---:|' * (len(settings) + 1)}")
    for name in args.rows.split(","):
        path = model_file(args.models, name, args.tokenizer)
        for sequences in args.sequences.split(","):
            figures = [served(args, path, sequences, fields) for fields in settings.values()]
            base = figures[0][0]
            cells = " | ".join(f"{speed:,.0f} ({speed / base:.0%})" for speed, _ in figures)
            fetched = sum(fetched for _, fetched in figures)
            print(f"| {name}, {sequences} | {cells} | {fetched:,} |", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("target/bench-models"))
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--batches", default="1,8,32,64,256")
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--served", metavar="REQUESTSxPROMPTxOUTPUT", help="measure serving instead, e.g. 512x512x128")
    parser.add_argument("--tokenizer", metavar="GGUF", help="with --served: measures texts of a form, too")
    parser.add_argument("--sequences", default="64,256", help="with --served: sequences at once (max_num_seqs)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="with --served: rounds after a warm-up; their median counts"
    )
    parser.add_argument("extra", nargs="*", help="further options of `rocmforge bench`, after --")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)

    if args.served:
        print(f"{dt.date.today()}: {' '.join(sys.argv)}\n", flush=True)
        print_served(args)
        return
    columns = [f"pp{n}" for n in args.prompts.split(",")]
    columns += ["tg" if n == "1" else f"tg{n}" for n in args.batches.split(",")]
    print(f"{dt.date.today()}: {' '.join(sys.argv)}\n", flush=True)
    print(
        "| model | "
        + " | ".join([*columns, "load s", "first token of 512, ms"])
        + " |\n|---|"
        + "---:|" * (len(columns) + 2),
        flush=True,
    )
    for name in args.rows.split(","):
        path = model_file(args.models, name)
        figures = measure(args, path)
        cells = " | ".join(f"{figures[column]:,.0f}" for column in columns)
        times = start(path, args.device)
        print(f"| {name} | {cells} | {times['load']:.2f} | {times['first_token'] * 1e3:.1f} |", flush=True)


if __name__ == "__main__":
    main()
