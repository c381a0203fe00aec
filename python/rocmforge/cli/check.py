"""`rocmforge check`."""

import typer

from rocmforge._rocmforge import check_gguf
from rocmforge.cli.common import JsonOption, ModelArgument, model_path, print_json
from rocmforge.progress import byte_bar


def check(model: ModelArgument, *, json_output: JsonOption = False) -> None:
    """Validate a file completely: structure, architecture, tokenizer, chat template, every value of every tensor.

    Exits with 1 when anything is wrong.
    """
    path = model_path(model)
    with byte_bar("Checking") as report:
        stages = check_gguf(path, report)
    valid = not any(stage["problems"] for stage in stages)
    if json_output:
        print_json({"model": str(path), "valid": valid, "stages": stages})
    else:
        for stage in stages:
            verdict = "FAILED" if stage["problems"] else "ok"
            typer.echo(f"{verdict:<8}{stage['stage']:<16}{stage['summary']}".rstrip())
            for message in stage["warnings"]:
                typer.echo(f"        warning: {message}")
            for problem in stage["problems"]:
                typer.echo(f"        {problem['error']}: {problem['message']}")
        typer.echo("valid" if valid else "not valid")
    if not valid:
        raise typer.Exit(1)
