#!/usr/bin/env python3
"""Measures what others notice of each attack on a server. `scripts/bench/bench_hostile.py MODEL` prints a Markdown
table."""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "server" / "hostile")]

from hostile_clients import ATTACKS, noticed, quantile  # noqa: E402
from server_process import serving  # noqa: E402

KEYS = ("attacker", "other")


def milliseconds(values: list[float]) -> str:
    """Returns the median, the 99th percentile and the largest of times."""
    return " | ".join(f"{1000 * value:.1f}" for value in (quantile(values, 0.5), quantile(values, 0.99), max(values)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each attack goes on")
    parser.add_argument("--attack", action="append", choices=ATTACKS, help="only this one; may be repeated")
    # Further arguments are the server's.
    options, arguments = parser.parse_known_args()
    keys = [word for key in KEYS for word in ("--api-key", key)]
    print("| attack | `/live`: median | p99 | most | stream: median | p99 | most |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), options.model, *keys, *arguments, headers={"x-api-key": KEYS[1]}) as server,
    ):
        for attack in ("none", *(options.attack or ATTACKS)):
            live, gaps = noticed(attack, server.url, KEYS, options.seconds)
            print(f"| {attack} | {milliseconds(live)} | {milliseconds(gaps)} |", flush=True)


if __name__ == "__main__":
    main()
