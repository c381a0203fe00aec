"""Draws the saved runs of pytest-benchmark: one row per bench, its median in every run, oldest to newest.

Usage: plot_benchmarks.py STORAGE_FOLDER PICTURE.png
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

RUNS_SHOWN = 8


def load_runs(storage: Path) -> list[tuple[str, dict[str, float]]]:
    """(label, median seconds by bench) of the last runs, oldest first."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in storage.rglob("*.json")]
    documents.sort(key=lambda document: document["datetime"])
    return [
        (document["datetime"][:19], {bench["name"]: bench["stats"]["median"] for bench in document["benchmarks"]})
        for document in documents[-RUNS_SHOWN:]
    ]


def plot(runs: list[tuple[str, dict[str, float]]], picture: Path) -> None:
    names = sorted({name for _, medians in runs for name in medians})
    step = 0.8 / len(runs)
    figure, axes = plt.subplots(figsize=(9, 1 + 0.6 * len(names)), layout="constrained")
    for index, (label, medians) in enumerate(runs):
        rows = [row for row, name in enumerate(names) if name in medians]
        # Points: on a logarithmic axis the length of a bar would mean nothing.
        values = [1e3 * medians[names[row]] for row in rows]
        places = [row + index * step for row in rows]
        axes.plot(values, places, "o", label=label)
        for value, place in zip(values, places, strict=True):
            axes.annotate(f" {value:.3g}", (value, place), va="center", fontsize=7)
    axes.set_yticks([row + 0.4 - step / 2 for row in range(len(names))], names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("median, milliseconds (further left is faster)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(title="run")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


def main(storage: Path, picture: Path) -> int:
    runs = load_runs(storage)
    if not runs:
        print(f"no saved run under {storage}: run `make bench`", file=sys.stderr)
        return 1
    plot(runs, picture)
    print(f"wrote {picture}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} STORAGE_FOLDER PICTURE.png")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
