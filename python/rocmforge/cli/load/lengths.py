"""How long the prompts and the answers of a load are: all alike, or drawn from a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

# The fields of a line, by the names of Mooncake's published traces of requests.
INPUT, OUTPUT = "input_length", "output_length"


class Lengths(NamedTuple):
    """Tokens of one request."""

    input: int
    output: int


def read_lengths(file: Path) -> list[Lengths]:
    """Reads lengths from JSON lines: objects with `input_length` and `output_length`, in tokens.

    Further fields may be there and are not read.

    Raises:
        ValueError: A line is invalid, or there are no lines; the message names file and line.
    """
    lengths = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        expected = f"expected an object with {INPUT} and {OUTPUT}, whole numbers from 1 on"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {expected} ({error})") from error
        if (one := _lengths(fields)) is None:
            raise ValueError(f"{file}, line {number}: got {line[:100].decode(errors='replace')}, {expected}")
        lengths.append(one)
    if not lengths:
        raise ValueError(f"{file}: got no line, expected JSON lines with {INPUT} and {OUTPUT}")
    return lengths


def _lengths(fields: object) -> Lengths | None:
    values = [fields.get(name) for name in (INPUT, OUTPUT)] if isinstance(fields, dict) else []
    # A boolean is an integer for Python.
    tokens = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 1]
    return Lengths(*tokens) if len(tokens) == len(Lengths._fields) else None


def draw_lengths(lengths: Sequence[Lengths], count: int, seed: int) -> list[Lengths]:
    """Draws `count` lengths at random: each of `lengths` once before any comes again."""
    source = np.random.default_rng(seed)
    drawn: list[int] = []
    while len(drawn) < count:
        drawn += source.permutation(len(lengths)).tolist()
    return [lengths[place] for place in drawn[:count]]
