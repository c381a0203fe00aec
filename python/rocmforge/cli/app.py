"""The command line: `rocmforge generate`, `chat`, `bench`, `inspect`, `check`, `doctor`, `perplexity`."""

from typing import Annotated

import typer

from rocmforge.cli.bench import bench
from rocmforge.cli.chat import chat
from rocmforge.cli.check import check
from rocmforge.cli.common import reports_errors
from rocmforge.cli.doctor import doctor
from rocmforge.cli.generate import generate
from rocmforge.cli.inspect import inspect
from rocmforge.cli.perplexity import perplexity
from rocmforge.cli.version import version_line

app = typer.Typer(
    name="rocmforge",
    help="Runs GGUF language models on AMD GPUs and CPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate, chat, bench, inspect, check, doctor, perplexity):
    app.command()(reports_errors(command))


@app.callback(invoke_without_command=True)
def _root(*, version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        typer.echo(version_line())
        raise typer.Exit
