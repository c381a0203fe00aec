#!/usr/bin/env python3
"""Measures the engine on a GPU: makes models of real shapes, runs `rocmforge bench` on each, prints one table.

    bench_gpu.py [--models DIR] [--rows llama-3-8b:q4_k_m,...] [--prompts 512,2048] [--batches 1,8,32,64,256]

Each row is one process: a model is loaded once and measured at all prompt lengths and batch sizes.
"""

import argparse
import datetime as dt
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
START = """
import json, statistics, sys, time
from rocmforge import LLM, SamplingParams
started = time.perf_counter()
llm = LLM(sys.argv[1], device="hip", enable_prefix_caching=False)
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
ROWS = "llama-3-8b:q4_k_m,llama-3-8b:q8_0,llama-3-8b:f16,qwen2.5-0.5b:q4_0"


def model_file(folder: Path, name: str) -> Path:
    """The model `shape:recipe`, made when it is not there."""
    shape, recipe = name.split(":")
    path = folder / f"{shape}.{recipe}.gguf"
    if not path.exists():
        started = time.monotonic()
        part = path.with_suffix(".part")
        subprocess.run([sys.executable, HERE / "make_model.py", shape, recipe, part], check=True)
        part.rename(path)
        print(f"made {path.name}, {path.stat().st_size / 1e9:.2f} GB, {time.monotonic() - started:.0f} s", flush=True)
    return path


def run(what: str, command: Sequence[str | Path]) -> dict[str, float]:
    """The figures that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise SystemExit(f"{what} ended with {done.returncode}")
    return json.loads(done.stdout)


def measure(path: Path, prompts: str, batches: str, decode: int, extra: list[str]) -> dict[str, float]:
    """The figures of one model, tokens per second."""
    command = [sys.executable, "-m", "rocmforge", "bench", "--model", str(path), "--device", "hip", "--json"]
    command += ["--prompt", prompts, "--batch", batches, "--decode", str(decode), *extra]
    return run(" ".join(command), command)


def start(path: Path) -> dict[str, float]:
    """Seconds to load a model from the page cache, and to the first token of a prompt of 512."""
    return run(f"loading {path}", [sys.executable, "-c", START, path])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=Path("target/bench-models"))
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--prompts", default="512,2048")
    parser.add_argument("--batches", default="1,8,32,64,256")
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("extra", nargs="*", help="further options of `rocmforge bench`, after --")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)

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
        figures = measure(path, args.prompts, args.batches, args.decode, args.extra)
        cells = " | ".join(f"{figures[column]:,.0f}" for column in columns)
        times = start(path)
        print(f"| {name} | {cells} | {times['load']:.2f} | {times['first_token'] * 1e3:.1f} |", flush=True)


if __name__ == "__main__":
    main()
