"""`rocmforge doctor --tune`: the numbers by which kernels are launched, each tried with the speeds that it decides."""

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocmforge import LLM, _rocmforge
from rocmforge.cli.bench.command import decode_speed, prompt_speed
from rocmforge.cli.device_test import made_up
from rocmforge.cli.device_test.outcome import OK, Job, Outcome

VARIABLE = "ROCMFORGE_TUNING"
"""The variable by which an engine takes other numbers."""

# Half of the layers of Llama 3.2 1B: each load takes a second or two, and all of them a minute.
MODEL = made_up.Shape(layers=8, hidden=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, vocab=32_768, context=8192)
QUICK_MODEL = made_up.Shape(layers=2, hidden=256, ffn=256, heads=4, kv_heads=2, head_dim=64, vocab=512)
STEPS = 32
QUICK_STEPS = 4
REPETITIONS = 3
LONG = 2048
QUICK_LONG = 64
MOST_TOGETHER = 32
# A smaller gain is noise.
LEAST_GAIN = 1.02


@dataclass(frozen=True, slots=True)
class Load:
    """The work by which a number is judged."""

    what: str
    sequences: int
    """Sequences that decode together; 0 for a prompt alone."""
    is_long: bool = False
    """True if they have long contexts."""


LOADS = {
    "gemv.blocks": Load("one sequence", 1),
    "matmul.blocks_8": Load("8 sequences", 8),
    "matmul.blocks_16": Load("16 sequences", 16),
    "matmul.blocks_32": Load("32 sequences", 32),
    "matmul.blocks": Load("a prompt", 0),
    "matmul.splits": Load("8 sequences", 8),
    "attention.blocks": Load("8 long contexts", 8, is_long=True),
    "attention.per_head_blocks": Load("one long context", 1, is_long=True),
}
Measure = Callable[[Load, dict[str, int]], float]


def tune(job: Job) -> Outcome:
    """Tries the values of each number in turn, and keeps the one that is fastest."""
    model = made_up.write(QUICK_MODEL if job.quick else MODEL, job.folder / "tune.gguf")

    def measure(load: Load, numbers: dict[str, int]) -> float:
        given = _listed(numbers)
        job.watch(f"{load.what} with {given or 'the numbers of the table'}")
        return _speed(job, model, load, given)

    return search(job.device, measure)


def search(device: str, measure: Measure) -> Outcome:
    """Finds the numbers; `measure` gives tokens per second."""
    numbers: dict[str, int] = {}
    rows = []
    table = _rocmforge.device_tuning(device)
    for number in table["numbers"]:
        name, own = number["name"], number["value"]
        load = LOADS[name]
        before = measure(load, numbers)
        speeds = {value: measure(load, numbers | {name: value}) for value in number["candidates"] if value != own}
        best = max(speeds, key=lambda value: speeds[value])
        gain = speeds[best] / before
        if gain >= LEAST_GAIN:
            numbers[name] = best
        rows.append(
            {"name": name, "value": own, "best": numbers.get(name, own), "gain": gain, "load": load.what}
            | {"speeds": {str(own): before} | {str(value): speed for value, speed in speeds.items()}}
        )
    given = _listed(numbers)
    summary = f"faster with {VARIABLE}={given}" if given else "the numbers of the table are the best"
    details = [f"{table['device']}, tuned as {table['tuned_as']}", *map(_line, rows)]
    figures = {"device": table["device"], "tuned_as": table["tuned_as"], "numbers": numbers, "rows": rows}
    return Outcome(OK, summary, details, figures)


def _listed(numbers: dict[str, int]) -> str:
    """The numbers as the variable takes them."""
    return ",".join(f"{name}={value}" for name, value in numbers.items())


def _line(row: dict[str, object]) -> str:
    speeds = row["speeds"]
    assert isinstance(speeds, dict)  # noqa: S101 - for the type
    told = ", ".join(f"{value}: {speed:,.1f}" for value, speed in speeds.items())
    return f"{row['name']}: {row['value']} -> {row['best']} (tok/s of {row['load']} with {told})"


def _speed(job: Job, model: Path, load: Load, given: str) -> float:
    """The median of tokens per second under the numbers that are given."""
    steps, long = (QUICK_STEPS, QUICK_LONG) if job.quick else (STEPS, LONG)
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = given
    try:
        with LLM(
            model,
            device=job.device,
            max_model_len=long + steps + 16,
            max_num_seqs=MOST_TOGETHER,
            enable_prefix_caching=load.is_long,
        ) as llm:

            def run() -> float:
                if load.sequences == 0:
                    return prompt_speed(llm, long)
                return decode_speed(llm, load.sequences, steps, **({"depth": long} if load.is_long else {}))

            run()
            return statistics.median(run() for _ in range(REPETITIONS))
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
