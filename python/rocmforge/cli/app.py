"""The command line: `rocmforge generate`, `chat`, `serve`, `launch`, `bench`, `pull`, `inspect`, `check` and others."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from rocmforge import InvalidRequestError, set_log_level
from rocmforge.cli.bench.command import bench
from rocmforge.cli.chat import chat
from rocmforge.cli.common import reports_errors
from rocmforge.cli.doctor import doctor
from rocmforge.cli.files.check import check
from rocmforge.cli.files.inspect import inspect
from rocmforge.cli.files.list import list_models
from rocmforge.cli.files.pull import pull
from rocmforge.cli.generate import generate
from rocmforge.cli.launch import launch
from rocmforge.cli.perplexity import perplexity
from rocmforge.cli.serve import serve
from rocmforge.cli.version import version_line


class Command(TyperCommand):
    """A command whose usage line has required arguments without braces, which mean a choice elsewhere."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the parts of the usage line."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece[1:].replace("}", "", 1) if piece.startswith("{") else piece for piece in pieces]


app = typer.Typer(
    name="rocmforge",
    help="Run GGUF language models on AMD GPUs, NVIDIA GPUs and CPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate, chat, serve, launch, bench, pull, inspect, check, doctor, perplexity):
    app.command(cls=Command)(reports_errors(command))
app.command("list", cls=Command)(reports_errors(list_models))
app.command("run", cls=Command, help="The same as chat.")(reports_errors(chat))


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    log_level: Annotated[
        str | None,
        typer.Option(help="Lowest level of the engine's messages: debug, info, warning, error, or off."),
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
