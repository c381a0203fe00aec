#!/usr/bin/env python3
"""Puts the CPU engine beside ik_llama.cpp, turn about, and prints one table: prompts and decoding of SmolLM2-135M and
of each type at a shape of 1B parameters, long contexts, and with `--ik-avx2` the same for AVX2 alone.

    bench_cpu.py --ik /tmp/ik/llama-bench [--ik-avx2 /tmp/ik-avx2/llama-bench] [--models DIR] [--rounds 5]

ik_llama.cpp is built for the machine, for `--ik-avx2` with -DGGML_NATIVE=OFF and AVX2, FMA and F16C. SmolLM2 is that of
`rocmforge pull demo`; the others have random weights and are made when they are not there (7 GB of disk).
"""

import argparse
import datetime as dt
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bench_gpu import model_file
from compare_llamacpp import Compared, compare
from rocmforge.cli.common import model_path

SMOLLM2 = "smollm2-135m:q4_1"
# At the load, their weights are arranged as their kernels read them, as ours always are. Types of a codebook are not:
# their prompts are faster as they lie in the file.
ARRANGED = "-rtr 1"


@dataclass(frozen=True)
class Load:
    """A model, and the ratio that each of its rows is to have."""

    model: str
    prompt: int = 128
    new_tokens: int = 48
    wanted_prompt: str = "≥ 1"
    wanted_decode: str = "≥ 1"
    depth: int | None = None
    # Both are told these options besides; the table says so in a few words.
    ours: str = ""
    theirs: str = ARRANGED
    what: str = ""
    # A turn at a long context takes minutes.
    reps: int = 3
    rounds: int | None = None


def shape(ty: str) -> str:
    """The name by which a model of this type is made."""
    return f"llama-3.2-1b:{ty}"


LONG = {"depth": 8192, "new_tokens": 32, "reps": 1, "rounds": 2}
TYPES = [
    Load(SMOLLM2, 512, 64, "≥ 1.5", "≥ 1.2"),
    Load(shape("q4_k_m"), wanted_prompt="≥ 1.7", wanted_decode="≥ 1.05"),
    *(Load(shape(ty)) for ty in ("q6_k", "q8_0", "q4_0", "iq4_xs", "mxfp4")),
]
LOADS = [
    *TYPES,
    *(Load(shape(ty), theirs="", wanted_prompt="", wanted_decode="", reps=2) for ty in ("iq2_xxs", "iq3_s")),
    Load(shape("q4_k_m"), wanted_decode="65 % of tg", theirs=f"{ARRANGED} -w 0", **LONG),
    Load(
        shape("q4_k_m"),
        wanted_decode="75 % of tg",
        ours="--kv-cache-dtype int8",
        theirs=f"{ARRANGED} -w 0 -ctk q8_0 -ctv q8_0",
        what="over int8, theirs over q8_0",
        **LONG,
    ),
]


def find(folder: Path, model: str) -> Path:
    """The file of a model, made if need be."""
    return model_path(None) if model == SMOLLM2 else model_file(folder, model)


def measure(args: argparse.Namespace, load: Load, bench: str, path: Path) -> list[Compared]:
    """Both engines' rows of a load; of one at a long context, those alone that no other load has."""
    settings = argparse.Namespace(
        threads=args.threads,
        prompt=str(load.prompt),
        new_tokens=load.new_tokens,
        batch="1",
        depth=load.depth,
        reps=load.reps,
        rounds=min(load.rounds or args.rounds, args.rounds),
        ours=load.ours,
        llama_bench=f"{bench} {load.theirs}",
    )
    rows = compare(settings, str(path))
    if load.depth is None:
        return rows
    by_name = {row.row: row for row in rows}
    deep = by_name[f"tg @ d{load.depth}"]
    share = sum(deep.ours) / sum(by_name["tg"].ours)
    return [Compared(f"{deep.row} ({share:.0%} of tg)", deep.ours, deep.theirs)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ik", required=True, help="llama-bench of ik_llama.cpp, built for this machine")
    parser.add_argument("--ik-avx2", help="the same, built for AVX2")
    parser.add_argument("--models", type=Path, default=Path("target/bench-models"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine")
    args = parser.parse_args()
    args.models.mkdir(parents=True, exist_ok=True)
    paths = {model: find(args.models, model) for model in dict.fromkeys(load.model for load in LOADS)}
    print(f"{dt.date.today()}: {' '.join(sys.argv)}\n")
    print("| model | row | rocmforge | ik_llama.cpp | ratio, median (lowest to highest of a turn) | wanted |")
    print("|---|---|---:|---:|---|---|", flush=True)
    for load in LOADS:
        for row in measure(args, load, args.ik, paths[load.model]):
            wanted = load.wanted_prompt if row.row.startswith("pp") else load.wanted_decode
            print(f"| {', '.join(filter(None, [load.model, load.what]))} | {row} | {wanted} |", flush=True)
    if args.ik_avx2:
        os.environ["ROCMFORGE_CPU_ISA"] = "avx2"
        for load in TYPES:
            for row in measure(args, load, args.ik_avx2, paths[load.model]):
                print(f"| {load.model}, AVX2 | {row} | ≥ 1 |", flush=True)


if __name__ == "__main__":
    main()
