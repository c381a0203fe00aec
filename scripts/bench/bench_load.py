#!/usr/bin/env python3
"""Measures what a server meets on a GPU, and prints one table: prompts, batches, long contexts, served requests.

    bench_load.py [--models DIR] [--device gpu] [--rounds 2]

Models are of real shapes with random weights and are made when they are not there (`make_model.py`, 24 GB of disk).
Each row is tokens per second, the median of the repetitions of one process.
"""

import argparse
import datetime as dt
import sys
from dataclasses import dataclass
from pathlib import Path

from bench_gpu import SETTINGS, measure, model_file, served

DENSE, EXPERTS = "llama-3-8b:q4_k_m", "qwen3-30b-a3b:q4_k_m"
FP8 = ("--compute-dtype", "fp8")
INT8 = ("--kv-cache-dtype", "int8")


@dataclass(frozen=True)
class Decode:
    """Rows of `rocmforge bench`: prompts, and decode steps of several numbers of sequences behind a context."""

    what: str
    model: str
    prompts: str = ""
    batches: str = ""
    depth: int = 32
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Served:
    """A row of `rocmforge bench --serve`: so many requests of 512 tokens with answers of 128, all sent at once."""

    what: str
    model: str
    requests: int
    settings: str
    sequences: int = 256
    options: tuple[str, ...] = ()


ROWS: list[Decode | Served] = [
    Decode("", DENSE, "512,2048", "1,8,32,64,256"),
    Decode("fp8", DENSE, "512,2048", options=FP8),
    Decode("", DENSE, batches="1,8", depth=7900),
    Decode("int8 KV", DENSE, batches="1,8", depth=7900, options=INT8),
    Decode("", DENSE, batches="32", depth=4000),
    Decode("int8 KV", DENSE, batches="32", depth=4000, options=INT8),
    Served("", DENSE, 512, "greedy"),
    Served("", DENSE, 512, "temperature 0.8, top-p, top-k"),
    Served("", DENSE, 512, "temperature 0.8, top-p, repetition"),
    Served("fp8, int8 KV", DENSE, 512, "greedy", options=(*FP8, *INT8)),
    Decode("", EXPERTS, "512,2048", "1,8,32,64"),
    Served("128 at once", EXPERTS, 256, "greedy", sequences=128),
]


def decode(args: argparse.Namespace, row: Decode, path: Path) -> dict[str, float]:
    """The figures of one process, by their row."""
    extra = ["--depth", str(row.depth), "--reps", str(args.rounds), *row.options]
    rows = {"prompts": row.prompts, "batches": row.batches, "decode": 64}
    return measure(argparse.Namespace(**vars(args), **rows, extra=extra), path)


def serve(args: argparse.Namespace, row: Served, path: Path) -> dict[str, float]:
    """Output tokens per second."""
    load = argparse.Namespace(**vars(args), served=f"{row.requests}x512x128", extra=row.options)
    speed, _ = served(load, path, str(row.sequences), SETTINGS[row.settings])
    return {f"served, {row.requests} x 512/128, {row.settings}": speed}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("target/bench-models"))
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--rounds", type=int, default=2, help="repetitions behind one that warms up")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)
    print(f"{dt.date.today()}: {' '.join(sys.argv)}\n\n| model | row | tok/s |\n|---|---|---:|", flush=True)
    for row in ROWS:
        path = model_file(args.models, row.model)
        figures = decode(args, row, path) if isinstance(row, Decode) else serve(args, row, path)
        for name, speed in figures.items():
            print(f"| {row.model} | {', '.join(filter(None, [name, row.what]))} | {speed:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
