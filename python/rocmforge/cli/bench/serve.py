"""`rocmforge bench --serve`: many requests at once, on a server or on the engine itself.

Both get the same requests, so that the two runs tell what a server costs.
"""

import asyncio
import csv
import functools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import typer

from rocmforge import AsyncLLM
from rocmforge.cli.common import Format, fail, model_path, print_json, print_table
from rocmforge.cli.load.lengths import Lengths, draw_lengths, read_lengths
from rocmforge.cli.load.options import engine_params
from rocmforge.cli.load.report import LoadReport, Times, percentile_name, report
from rocmforge.cli.load.requests import Ask, Load, of_engine, run_load
from rocmforge.cli.summary import machine_line, model_summary
from rocmforge.display.progress import bar
from rocmforge.settings import EngineSettings

# The counters of an engine that explain a row's speed, by their names in `Stats`.
COUNTS = (
    "num_preemptions",
    "prefix_cache_hits",
    "logits_rows_fetched",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads of a run."""

    rows: list[Load]
    warmup: Load | None
    """A load before the others, which does not count."""
    lengths: str
    """The requests' lengths in words."""

    @classmethod
    def of(
        cls,
        *,
        fixed: Lengths,
        file: Path | None,
        num_prompts: int,
        num_warmups: int,
        concurrencies: Sequence[int | None],
        rates: Sequence[float],
        seed: int,
    ) -> Self:
        """Returns a load for each concurrency at each rate, all with the same lengths.

        Args:
            fixed: The lengths of all requests.
            file: Draws them from here instead.
            num_prompts: Requests of each row.
            num_warmups: Requests before the first row.
            concurrencies: Requests under way at once.
            rates: Requests per second.
            seed: The run's.

        Raises:
            BadParameter: The file is none of lengths.
        """
        try:
            known = [fixed] if file is None else read_lengths(file)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--dataset-path") from None
        drawn = draw_lengths(known, max(num_prompts, num_warmups), seed)
        limits = [(concurrency, rate) for concurrency in concurrencies for rate in rates]
        rows = [
            Load(drawn[:num_prompts], concurrency, rate, (seed, number))
            for number, (concurrency, rate) in enumerate(limits)
        ]
        # Without a limit on the requests at once the warm-up has none either.
        most = None if None in concurrencies else max(one for one in concurrencies if one is not None)
        warmup = Load(drawn[:num_warmups], most, math.inf, (seed, len(rows))) if num_warmups else None
        means = [round(fmean(tokens), 1) for tokens in zip(*drawn[:num_prompts], strict=True)]
        words = "{:g} tokens in, {:g} out".format(*means)
        return cls(rows, warmup, words if file is None else f"{file.name}, on average {words}")


@dataclass(frozen=True, slots=True)
class Plan:
    """Measures serving under load, and reports the results."""

    loads: Loads
    settings: dict[str, Any]
    """Fields of each request, such as how to sample."""
    metrics: list[str]
    percentiles: list[float]
    limits: dict[str, float]
    """Milliseconds by metric, for goodput."""
    output_format: Format
    plot: Path | None
    """The file of the picture."""


def bench_server(url: str, plan: Plan, *, model_name: str | None, api_key: str | None) -> None:
    """Measures a server."""
    try:
        from rocmforge.cli.load.client import of_server  # noqa: PLC0415 - only this needs the extra
    except ModuleNotFoundError as error:
        fail(f"{error}; install what a client needs: pip install 'rocmforge[serve]'")
    try:
        ask = of_server(url, model_name, api_key, plan.settings)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    about = {"client": machine_line(), "server": url if model_name is None else f"{url}, {model_name}"}
    _tell(asyncio.run(_measure(ask, plan, dict)), about, plan)


def bench_engine(model: Path | None, plan: Plan, settings: EngineSettings) -> None:
    """Measures an engine with these settings in this process."""
    params = engine_params(plan.settings)
    path = model_path(model)

    async def measure() -> tuple[list[LoadReport], str]:
        engine = await AsyncLLM.load(path, **settings)
        async with engine:

            def counts() -> dict[str, int]:
                stats = engine.stats()
                return {name: getattr(stats, name) for name in COUNTS}

            return await _measure(of_engine(engine, params), plan, counts), engine.describe()

    reports, described = asyncio.run(measure())
    about = {"machine": machine_line(), "engine": described, "model": model_summary(path).line()}
    _tell(reports, about, plan)


async def _measure(ask: Ask, plan: Plan, counts: Callable[[], dict[str, int]]) -> list[LoadReport]:
    warmup = plan.loads.warmup
    loads = [*([warmup] if warmup else []), *plan.loads.rows]
    total, before = sum(len(load.lengths) for load in loads), 0
    reports: list[LoadReport] = []
    with bar("Measuring", unit="requests") as draw:

        def ended(earlier_loads: int, this_load: int) -> None:
            draw(earlier_loads + this_load, total, "")

        for load in loads:
            earlier = counts()
            outcome = await run_load(ask, load, functools.partial(ended, before))
            counted = {name: count - earlier[name] for name, count in counts().items()}
            before += len(load.lengths)
            one = report(load, outcome, plan.metrics, plan.percentiles, plan.limits, counted)
            if load is not warmup:
                reports.append(one)
            elif one.failed:
                fail(f"{one.failed} of {one.num_prompts} requests of the warm-up failed: {'; '.join(one.errors)}")
    return reports


def _tell(reports: list[LoadReport], about: Mapping[str, str], plan: Plan) -> None:
    """Prints the rows, draws the picture, and fails if a request failed."""
    head: dict[str, Any] = {**about, "lengths": plan.loads.lengths, "sampling": plan.settings, "goodput": plan.limits}
    match plan.output_format:
        case Format.JSON:
            print_json({**head, "rows": [one.row() for one in reports]})
        case Format.CSV:
            _print_csv([one.row() for one in reports])
        case Format.MD:
            typer.echo("".join(f"{line}\n\n" for line in _lines(head)), nl=False)
            headers, rows = _cells(reports, plan)
            typer.echo(f"| {' | '.join(headers)} |\n|{'---:|' * len(headers)}")
            for row in rows:
                typer.echo(f"| {' | '.join(row)} |")
        case Format.TABLE:
            typer.echo("\n".join(_lines(head)), err=not sys.stdout.isatty())
            print_table("", *_cells(reports, plan))
    if plan.plot is not None:
        # The library is an extra.
        from rocmforge.cli.load.plot import draw_loads  # noqa: PLC0415

        draw_loads(reports, f"{about.get('model') or about['server']}\n{plan.loads.lengths}", plan.plot)
        typer.echo(f"wrote {plan.plot}", err=True)
    completed = sum(one.completed for one in reports)
    if shorter := sum(one.shorter for one in reports):
        typer.echo(f"warning: {shorter} of {completed} answers have fewer tokens than were asked for", err=True)
    if errors := sorted({error for one in reports for error in one.errors}):
        failed, total = sum(one.failed for one in reports), sum(one.num_prompts for one in reports)
        fail(f"{failed} of {total} requests failed: {'; '.join(errors)}")


def _lines(head: Mapping[str, Any]) -> list[str]:
    """The lines above the table."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in head.items() if value}
    return [f"{name}: {text}" for name, text in texts.items()]


def _print_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "errors": "; ".join(row["errors"])} for row in rows)


def _cells(reports: Sequence[LoadReport], plan: Plan) -> tuple[list[str], list[list[str]]]:
    """The headers and the rows of the table; the percentiles of a time share a cell."""
    percentiles = " / ".join(map(percentile_name, plan.percentiles))
    headers = ["at once", "rate", "done", "req/s", *(["good/s"] if plan.limits else []), "output tok/s", "total tok/s"]
    headers += [f"{metric.upper()} ms, {percentiles}" for metric in plan.metrics]
    return headers, [_row(one) for one in reports]


def _row(one: LoadReport) -> list[str]:
    row = ["all" if one.max_concurrency is None else str(one.max_concurrency)]
    row.append(f"{one.request_rate:g}" if math.isfinite(one.request_rate) else "all")
    row += [f"{one.completed} of {one.num_prompts}", f"{one.request_throughput:.2f}"]
    row += [] if one.request_goodput is None else [f"{one.request_goodput:.2f}"]
    row += [f"{one.output_throughput:.1f}", f"{one.total_token_throughput:.1f}"]
    return row + [_times(times) for times in one.times.values()]


def _times(times: Times | None) -> str:
    return "-" if times is None else " / ".join(f"{value:.1f}" for value in times.percentiles.values())
