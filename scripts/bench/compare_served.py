#!/usr/bin/env python3
"""Serves one GGUF file with rocmforge and with another server, turn about, and prints what clients saw of both.

Each turn starts a server, puts the loads of `rocmforge bench --serve` on it, and ends it. Prints a row for each load,
as a Markdown table: medians over the turns, and the ratios of output tokens per second. The other server is a command,
in which {port} stands for the port it is to listen on; it needs /health, and OpenAI's completions with token ids as a
prompt, as llama.cpp's and vLLM's servers have them. What follows -- goes to `rocmforge bench --serve`:

    .venv/bin/python scripts/bench/compare_served.py -m MODEL.gguf \\
        --other 'llama-server -m MODEL.gguf --port {port} -np 64 -c 65536 -ngl 99' \\
        -- --num-prompts 256 --num-warmups 64 --max-concurrency 1,8,64 --input-len 512 --output-len 128
"""

import argparse
import json
import shlex
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

WAIT_SECONDS = 600.0
POLL_SECONDS = 0.1
# Columns of both, by their key in a row of `rocmforge bench --serve --json`.
COLUMNS = {
    "output_throughput": "output tok/s",
    "median_ttft_ms": "TTFT median, ms",
    "median_tpot_ms": "TPOT median, ms",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--other", required=True, help="the command of the other server, with {port} in it")
    parser.add_argument("--ours", default="", help="further options of `rocmforge serve`")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each server")
    parser.add_argument("options", nargs="*", help="options of `rocmforge bench --serve`, after --")
    args = parser.parse_args()
    if "{port}" not in args.other:
        parser.error(f"--other: got {args.other!r}, expected {{port}} in it")
    ours = [sys.executable, "-m", "rocmforge", "serve", args.model, "--port", "{port}", *shlex.split(args.ours)]
    commands = (ours, shlex.split(args.other))
    turns: tuple[list[Any], list[Any]] = ([], [])
    for _ in range(args.rounds):
        for command, reports in zip(commands, turns, strict=True):
            with serving(command) as url:
                reports.append(measure(url, args.options)["rows"])
    print(f"| at once, rate | {' | '.join(f'{name}, ours and theirs' for name in COLUMNS.values())} | ratio |")
    print(f"|---|{'---|' * (len(COLUMNS) + 1)}")
    for rows in zip(*(zip(*reports, strict=True) for reports in turns), strict=True):
        print_row(*rows)


def print_row(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> None:
    """Prints what all turns measured of one load."""
    rate = ours[0]["request_rate"]
    cells = [f"{ours[0]['max_concurrency'] or 'all'}, {'all' if rate == 'Infinity' else rate}"]
    cells += [" and ".join(median(rows, key) for rows in (ours, theirs)) for key in COLUMNS]
    ratios = sorted(a["output_throughput"] / b["output_throughput"] for a, b in zip(ours, theirs, strict=True))
    cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"| {' | '.join(cells)} |", flush=True)


def median(rows: Sequence[dict[str, Any]], key: str) -> str:
    """The median of a figure; answers of one token have no time per token after it."""
    values = [row[key] for row in rows if row[key] is not None]
    return f"{statistics.median(values):,.1f}" if values else "-"


def measure(url: str, options: Sequence[str]) -> Any:
    """The figures of a server; a request that fails ends the program."""
    command = [sys.executable, "-m", "rocmforge", "bench", "--serve", "--url", url, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{url}: {done.stderr}")
    return json.loads(done.stdout)


@contextmanager
def serving(command: Sequence[str]) -> Iterator[str]:
    """Runs a server; gives its address once it is healthy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = [word.replace("{port}", str(port)) for word in command]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start: {shlex.join(words)}")
            time.sleep(POLL_SECONDS)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_healthy(url: str) -> bool:
    """Whether a server says that it serves."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=WAIT_SECONDS) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
