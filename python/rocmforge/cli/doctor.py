"""`rocmforge doctor`."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from rocmforge import LLM, __version__, _rocmforge
from rocmforge.cli.common import (
    A_MODEL,
    DeviceOption,
    JsonOption,
    ThreadsOption,
    model_path,
    print_json,
    print_table,
)
from rocmforge.cli.summary import gpu_lines
from rocmforge.cli.version import version_line
from rocmforge.display.progress import bar
from rocmforge.reports import DeviceReport, GpuKernelReport


def doctor(
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help=f"{A_MODEL}; by default no model is loaded.")
    ] = None,
    *,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    test: Annotated[
        bool,
        typer.Option(
            "--test", help="Test and measure the device in about two minutes; paste the report into an issue."
        ),
    ] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Try other launch parameters of the GPU's kernels for a minute; paste the table into an issue.",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --test or --tune, use few cases and small models; takes seconds.")
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(
            "--part",
            help="With --test, run only this part; may be repeated. Parts: devices, kernels, repeats, graphs, library, "
            "sequences, bandwidth, launches, speed.",
        ),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show devices and the kernels for each tensor type and operation; with --model, also what that model runs on.

    With --test, compare the device's results with references and measure its speed. The exit code is 1 if a
    test fails.
    """
    if test or tune:
        if model is not None or threads is not None:
            raise typer.BadParameter("--test and --tune make up models: they take neither --model nor --threads")
        if tune and (test or part):
            raise typer.BadParameter("--tune comes without --test and --part")
        _test(device, tune=tune, quick=quick, only=part or [], json_output=json_output)
        return
    if quick or part:
        raise typer.BadParameter("--quick needs --test or --tune, and --part needs --test")
    with bar("Loading kernels onto the GPU, compiling those without code", unit="units") as draw:
        report = _rocmforge.doctor(device, lambda done, total: draw(done, total, ""))
    loaded: dict[str, Any] | None = None
    if model is not None:
        path = model_path(model)
        with LLM(path, device=device, num_threads=threads, max_num_seqs=1) as llm:
            loaded = {"path": str(path), "runs_on": llm.describe(), "config": llm.config()}
    if json_output:
        print_json({"version": __version__, **report} | ({} if loaded is None else {"model": loaded}))
        return
    typer.echo(f"{version_line()}, {report['architecture']}, {report['num_cpus']} CPU threads\n")
    for device_report in report["devices"]:
        typer.echo(f"device {device_report['name']}: {device_report['detail']}")
    for line in gpu_lines(report, taken=f'which device="{device}" takes'):
        typer.echo(line)
    typer.echo(f'device="{device}" takes: {report["takes"]}\n')
    for device_report in report["devices"]:
        if "kernels" in device_report:
            _print_gpu(device_report)
            typer.echo()
    features = [(name, "yes" if available else "no") for name, available in report["cpu_features"].items()]
    print_table("CPU instruction sets", ["instruction set", "available"], features)
    typer.echo()
    print_table(
        "Kernels of the CPU", ["tensor type", "op", "kernel"], [tuple(row.values()) for row in report["kernels"]]
    )
    if loaded is not None:
        typer.echo(f"\n{loaded['runs_on']}")


def _test(device: str, *, tune: bool, quick: bool, only: list[str], json_output: bool) -> None:
    # Only this command needs the import.
    from rocmforge.cli.device_test import report as reports  # noqa: PLC0415
    from rocmforge.cli.device_test.parts import PARTS  # noqa: PLC0415

    device = _rocmforge.chosen_device(device)
    if unknown := set(only) - set(PARTS):
        raise typer.BadParameter(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    with bar("Tuning" if tune else "Testing", unit="parts") as draw:
        if tune:
            report = reports.tune(device, quick=quick, tell=lambda what: draw(0, 1, what))
        else:
            report = reports.examine(
                device, quick=quick, only=only, tell=lambda number, what: draw(number, len(PARTS), what)
            )
    if json_output:
        print_json(report)
    else:
        typer.echo(reports.text_of(report))
    if report["failed"]:
        raise typer.Exit(1)


def _print_gpu(device: DeviceReport) -> None:
    """Prints the tuning, a row per tensor type with its kernel for each op, then one per op of two types or of none."""
    typer.echo(f"tuned as: {device['tuned_as']}")
    rows = device["kernels"]
    problems = {row["problem"] for row in rows}
    if len(problems) == 1 and None not in problems:
        typer.echo(f"none of its kernels can be used: {problems.pop()}")
        return
    typed = [row for row in rows if row["tensor_type"] is not None]
    ops = list(dict.fromkeys(row["op"] for row in typed))
    table = []
    for name in dict.fromkeys(row["tensor_type"] for row in typed):
        mine = {row["op"]: row for row in typed if row["tensor_type"] == name}
        table.append([name, *(_kernel(mine[op]) for op in ops), _code(mine.values())])
    print_table("Kernels of the GPU, weights", ["tensor type", *ops, "code"], table)
    typer.echo()
    others = [row for row in rows if row["tensor_type"] is None]
    table = [[row["op"], _kernel(row), _code([row])] for row in others]
    print_table("Kernels of the GPU, stacks of two types and activations", ["op", "kernel", "code"], table)
    typer.echo(f"\nmatrix library of the vendor: {device['matrix_library']}")
    typer.echo(device["decode_steps"])


def _kernel(row: GpuKernelReport) -> str:
    """Several kernels of one op in short: `matmul_q4_k_{n8,n16,n32,n64}`; with the matrix unit that their code uses."""
    text, *others = row["kernels"]
    if others:
        parts = zip(*(name.split("_") for name in row["kernels"]), strict=False)
        start = "".join(f"{part[0]}_" for part in itertools.takewhile(lambda part: len(set(part)) == 1, parts))
        text = f"{start}{{{','.join(name.removeprefix(start) for name in row['kernels'])}}}"
    return text if row["matrix_unit"] is None else f"{text} ({row['matrix_unit']})"


def _code(rows: Iterable[GpuKernelReport]) -> str:
    """Tells how the code of rows came about; the units are named where it did so in several ways."""
    units: dict[str, dict[str, None]] = {}
    for row in rows:
        how = row["code"] or f"NOT USABLE: {row['problem']}"
        units.setdefault(how, {})[row["unit"]] = None
    if len(units) == 1:
        return next(iter(units))
    return "; ".join(f"{', '.join(names)}: {how}" for how, names in units.items())
