"""`rocmforge bench`: prompt, decode and batched decode, in rows that compare with llama.cpp's.

`ppN`: tokens per second of a prompt of N. `tg`, `tgB`: tokens per second of one sequence's, or of B sequences'
decode steps together, each with 32 tokens of context. Medians over the repetitions after a warm-up.
"""

import csv
import statistics
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from rocmforge import LLM, SamplingParams
from rocmforge.cli.common import (
    DeviceOption,
    JsonOption,
    ModelOption,
    ThreadsOption,
    model_path,
    print_json,
    print_table,
)
from rocmforge.progress import bar, is_terminal, load_bar

CONTEXT = 32


class Format(StrEnum):
    """How the rows are printed."""

    TABLE = "table"
    MD = "md"
    CSV = "csv"
    JSON = "json"


def _counts(text: str) -> list[int]:
    try:
        counts = [int(item) for item in text.split(",") if item]
    except ValueError:
        counts = [0]
    if any(count < 1 for count in counts):
        raise typer.BadParameter(f"{text!r} is not a list of positive numbers such as 128,512")
    return counts


def bench(
    model: ModelOption = None,
    *,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Prompt lengths.")] = "128,512",
    decode: Annotated[int, typer.Option("--decode", "-n", min=1, help="Decode steps.")] = 64,
    batch: Annotated[str, typer.Option("--batch", "-b", help="Numbers of sequences.")] = "1,8,16",
    reps: Annotated[int, typer.Option("--reps", "-r", min=1, help="Repetitions after a warm-up.")] = 3,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens in one step.")] = None,
    output_format: Annotated[Format, typer.Option("--format", help="table, md, csv or json.")] = Format.TABLE,
    json_output: JsonOption = False,
) -> None:
    """Measure tokens per second: prompts, one sequence, many sequences."""
    prompts, batches = _counts(prompt), _counts(batch)
    if not (prompts or batches):
        raise typer.BadParameter("nothing to measure: -p and -b are both empty")
    with load_bar():
        llm = LLM(
            model_path(model),
            device=device,
            num_threads=threads,
            max_model_len=max([n + 1 for n in prompts] + [CONTEXT + decode + 1]),
            max_num_seqs=max([1, *batches]),
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=False,
        )
    rows: dict[str, float] = {}
    with llm, bar("Measuring", unit="runs") as draw:
        if is_terminal():
            typer.echo(llm.describe(), err=True)
        total = (reps + 1) * (len(prompts) + len(batches))

        def median(run: Callable[[], float]) -> float:
            values = []
            for _ in range(reps + 1):
                values.append(run())
                nonlocal_done[0] += 1
                draw(nonlocal_done[0], total, "")
            return statistics.median(values[1:])

        nonlocal_done = [0]
        for n in prompts:
            rows[f"pp{n}"] = n / median(lambda n=n: prompt_seconds(llm, n))  # type: ignore[misc]
        for b in batches:
            rows["tg" if b == 1 else f"tg{b}"] = median(lambda b=b: decode_speed(llm, b, decode))  # type: ignore[misc]
    _print(rows, Format.JSON if json_output else output_format)


def _prompt(length: int) -> list[int]:
    return [3 + i % 250 for i in range(length)]


def prompt_seconds(llm: LLM, length: int) -> float:
    """Time of a request for one token."""
    prompt = _prompt(length)
    started = time.perf_counter()
    llm.generate(prompt, SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True), progress=False)
    return time.perf_counter() - started


def decode_speed(llm: LLM, num_sequences: int, steps: int) -> float:
    """Tokens per second from when every sequence has its first token to when the last one ends.

    The engine may take up the first sequence a step before the others. The token that it makes while they compute
    their prompts is then not counted.
    """
    params = SamplingParams(max_tokens=steps + 1, temperature=0.0, ignore_eos=True)
    prompts = [_prompt(CONTEXT)] * num_sequences
    metrics = [output.metrics for output in llm.generate(prompts, params, progress=False)]
    first = [m.arrival_time + (m.time_to_first_token or 0.0) for m in metrics]
    last = [m.arrival_time + (m.total_time or 0.0) for m in metrics]
    start, end = max(first), max(last)
    step = (end - start) / steps
    early = sum(1 for time_ in first if start - time_ > step / 2)
    return (num_sequences * steps - early) / (end - start)


def _print(rows: dict[str, float], output_format: Format) -> None:
    match output_format:
        case Format.JSON:
            print_json({name: round(speed, 2) for name, speed in rows.items()})
        case Format.CSV:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(["test", "tokens_per_second"])
            writer.writerows([name, f"{speed:.2f}"] for name, speed in rows.items())
        case Format.MD:
            typer.echo("| test | tok/s |\n|---|---:|")
            for name, speed in rows.items():
                typer.echo(f"| {name} | {speed:.1f} |")
        case Format.TABLE:
            print_table("", ["test", "tok/s"], [(name, f"{speed:.1f}") for name, speed in rows.items()])
