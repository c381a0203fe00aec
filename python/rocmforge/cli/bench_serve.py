"""`rocmforge bench --serve`: many requests at once, on a server or on the engine itself.

Both get the same requests, so that the two runs tell what a server costs.
"""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import typer

from rocmforge import AsyncLLM
from rocmforge.cli.common import fail, model_path, print_json, print_table
from rocmforge.cli.load import Load, LoadReport, of_engine, run_load
from rocmforge.progress import bar


def bench_server(url: str, load: Load, *, model_name: str | None, api_key: str | None, json_output: bool) -> None:
    """Measures a server."""
    try:
        from rocmforge.cli.load_client import of_server  # noqa: PLC0415 - only this needs the extra
    except ModuleNotFoundError as error:
        fail(f"{error}; install what a client needs: pip install 'rocmforge[serve]'")
    try:
        ask = of_server(url, model_name, api_key, load.output_len)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with bar("Measuring", unit="requests") as draw:
        report = asyncio.run(run_load(ask, load, lambda ended: draw(ended, load.num_prompts, "")))
    _print(report, json_output=json_output)


def bench_engine(model: Path | None, load: Load, *, json_output: bool, **options: Any) -> None:
    """Measures the engine in this process; `options` are those of `AsyncLLM`."""
    path = model_path(model)

    async def measure() -> LoadReport:
        engine = await AsyncLLM.load(path, **options)
        async with engine:
            with bar("Measuring", unit="requests") as draw:
                done = lambda ended: draw(ended, load.num_prompts, "")  # noqa: E731
                return await run_load(of_engine(engine, load.output_len), load, done)

    _print(asyncio.run(measure()), json_output=json_output)


def _print(report: LoadReport, *, json_output: bool) -> None:
    if json_output:
        print_json(dataclasses.asdict(report))
    else:
        totals = {
            "requests": f"{report.completed} completed, {report.failed} failed",
            "duration": f"{report.duration:.2f} s",
            "requests/s": f"{report.requests_per_second:.2f}",
            "output tokens/s": f"{report.output_tokens_per_second:.1f}",
            "total tokens/s": f"{report.total_tokens_per_second:.1f}",
        }
        for name, text in totals.items():
            typer.echo(f"{name:<16} {text}")
        times = {"TTFT": report.ttft_ms, "TPOT": report.tpot_ms, "ITL": report.itl_ms, "E2EL": report.e2el_ms}
        rows = [[name, *(f"{value:.2f}" for value in dataclasses.astuple(each))] for name, each in times.items()]
        print_table("", ["milliseconds", "mean", "median", "p90", "p99"], rows)
    if report.errors:
        fail(f"{report.failed} of {report.failed + report.completed} requests failed: {'; '.join(report.errors)}")
