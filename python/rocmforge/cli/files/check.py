"""`rocmforge check`."""

import typer

from rocmforge._rocmforge import check_gguf
from rocmforge.cli.common import JsonOption, ModelArgument, model_path, print_json
from rocmforge.display.progress import byte_bar
from rocmforge.display.terminal import printable


def check(model: ModelArgument, *, json_output: JsonOption = False) -> None:
    """Validate a whole file: structure, architecture, tokenizer, chat template and every value of every tensor.

    The exit code is 1 if a check fails.
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
            typer.echo(f"{verdict:<8}{stage['stage']:<16}{printable(stage['summary'])}".rstrip())
            for message in stage["warnings"]:
                typer.echo(f"        warning: {printable(message)}")
            for problem in stage["problems"]:
                typer.echo(f"        {problem['error']}: {printable(problem['message'])}")
        typer.echo("valid" if valid else "not valid")
    if not valid:
        raise typer.Exit(1)
