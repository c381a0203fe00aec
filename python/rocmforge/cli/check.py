"""`rocmforge check`."""

import typer

from rocmforge._rocmforge import check_gguf
from rocmforge.cli.common import JsonOption, ModelArgument, print_json
from rocmforge.progress import bar


def check(model: ModelArgument, *, json_output: JsonOption = False) -> None:
    """Validate a file completely: structure, architecture, tokenizer, chat template, every value of every tensor.

    Exits with 1 when anything is wrong.
    """
    with bar("Checking", unit="MB") as draw:
        stages = check_gguf(model, lambda done, total: draw(done // 1_000_000, total // 1_000_000, ""))
    valid = not any(problems for _, _, _, problems in stages)
    if json_output:
        report = [
            {
                "stage": name,
                "summary": summary,
                "warnings": warnings,
                "problems": [{"error": error, "message": message} for error, message in problems],
            }
            for name, summary, warnings, problems in stages
        ]
        print_json({"model": str(model), "valid": valid, "stages": report})
    else:
        for name, summary, warnings, problems in stages:
            typer.echo(f"{'FAILED' if problems else 'ok':<8}{name:<16}{summary}".rstrip())
            for message in warnings:
                typer.echo(f"        warning: {message}")
            for error, message in problems:
                typer.echo(f"        {error}: {message}")
        typer.echo("valid" if valid else "not valid")
    if not valid:
        raise typer.Exit(1)
