"""`rocmforge check`."""

import typer

import rocmforge
from rocmforge.cli.common import JsonOption, ModelArgument, print_json
from rocmforge.progress import bar


def check(model: ModelArgument, *, json_output: JsonOption = False) -> None:
    """Validate a file completely: structure, architecture, tokenizer, chat template, every value of every tensor.

    Exits with 1 when anything is wrong.
    """
    with bar("Checking", unit="MB") as draw:
        report = rocmforge.check(model, progress=lambda done, total: draw(done // 1_000_000, total // 1_000_000, ""))
    if json_output:
        print_json({"model": str(model), "valid": report.valid, "stages": report.stages})
    else:
        for stage in report.stages:
            verdict = "FAILED" if stage.problems else "ok"
            typer.echo(f"{verdict:<8}{stage.stage:<16}{stage.summary}".rstrip())
            for message in stage.warnings:
                typer.echo(f"        warning: {message}")
            for problem in stage.problems:
                typer.echo(f"        {problem.error}: {problem.message}")
        typer.echo("valid" if report.valid else "not valid")
    if not report.valid:
        raise typer.Exit(1)
