"""The command line: `rocmforge generate`, `chat`, `serve`, `bench`, `pull`, `inspect`, `check` and others."""

from typing import Annotated

import typer

from rocmforge import InvalidRequestError, set_log_level
from rocmforge.cli.bench import bench
from rocmforge.cli.chat import chat
from rocmforge.cli.check import check
from rocmforge.cli.common import reports_errors
from rocmforge.cli.doctor import doctor
from rocmforge.cli.generate import generate
from rocmforge.cli.inspect import inspect
from rocmforge.cli.perplexity import perplexity
from rocmforge.cli.pull import pull
from rocmforge.cli.serve import serve
from rocmforge.cli.version import version_line

app = typer.Typer(
    name="rocmforge",
    help="Runs GGUF language models on AMD GPUs and CPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate, chat, serve, bench, pull, inspect, check, doctor, perplexity):
    app.command()(reports_errors(command))


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    log_level: Annotated[
        str | None,
        typer.Option(help="Show messages of the engine from this level on: debug, info, warning, error, or off."),
    ] = None,
) -> None:
    if version:
        typer.echo(version_line())
        raise typer.Exit
    if log_level is not None:
        try:
            set_log_level(log_level)
        except InvalidRequestError as error:
            raise typer.BadParameter(str(error)) from None
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
