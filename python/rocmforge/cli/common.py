"""Parts that the commands share: the model, errors, and output that suits its reader."""

import codecs
import functools
import io
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer

from rocmforge import LLM, CompletionOutput, Image, RequestOutput, RocmForgeError, log
from rocmforge._rocmforge import log_level
from rocmforge.display.progress import is_terminal
from rocmforge.display.terminal import printable, printable_lines
from rocmforge.hub import model_file
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


UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def byte_count(value: str | int) -> int:
    """Reads a number of bytes: `8000000000`, `8GB` or `7.5GiB`.

    Raises:
        BadParameter: It is none.
    """
    found = re.fullmatch(r"(\d+)(\.\d+)? ?([A-Za-z]*)", str(value))
    whole, rest, unit = found.groups() if found else ("", "", "")
    if not whole or unit not in UNITS or (rest and not unit):
        units = ", ".join(filter(None, UNITS))
        raise typer.BadParameter(f"got {value}, expected a number of bytes, which a unit may follow ({units})")
    return int(whole) * UNITS[unit] + round(float(rest or 0) * UNITS[unit])


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
    typer.Option("--model", "-m", help=f"{A_MODEL}; by default the demo model (rocmforge pull demo)."),
]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help=f"{A_MODEL}.", show_default=False)]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, help="CPU threads; by default one per available logical CPU.")
]
# The values that a shell completes, by the names of settings.
VALUES: Mapping[str, Sequence[str]] = {
    "device": ("auto", "cpu", "gpu", "gpu:1", "hip", "rocm", "cuda"),
    "kv_cache_dtype": ("f16", "f32", "int8", "int4"),
    "compute_dtype": ("auto", "fp8"),
    "gpu_platform": ("amd", "nvidia"),
}


def completer(name: str) -> Callable[[str], list[str]] | None:
    """Returns what completes the values of a setting; `None` for one with any values."""
    values = VALUES.get(name)
    return None if values is None else lambda incomplete: [one for one in values if one.startswith(incomplete)]


DeviceOption = Annotated[
    str,
    typer.Option(
        help="auto, cpu, or a GPU: gpu, gpu:1 (the second one), hip or rocm (AMD), cuda (NVIDIA).",
        autocompletion=completer("device"),
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BatchInvariantOption = Annotated[
    bool | None,
    typer.Option(
        "--batch-invariant/--no-batch-invariant",
        help="Make GPU results independent of the batch, as CPU results always are; slower.",
        show_default=False,
    ),
]
KvCacheDtypeOption = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="Data type of keys and values: f16, f32, int8 (about half the memory of f16) or int4 (a third; CPU only).",
        autocompletion=completer("kv_cache_dtype"),
    ),
]
ComputeDtypeOption = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="Data type of large matrix products on a GPU: auto, or fp8, which is faster and less exact.",
        autocompletion=completer("compute_dtype"),
    ),
]
GpuMemoryLimitOption = Annotated[
    int | None,
    typer.Option(
        parser=byte_count,
        metavar="BYTES",
        help="Maximum GPU memory, in bytes or such as 7.5GiB. Weights that do not fit stay in host memory.",
        show_default=False,
    ),
]
GpuLayersOption = Annotated[
    int | None,
    typer.Option(min=0, help="Number of first layers kept entirely in GPU memory; by default as many as fit."),
]
ExpertCacheOption = Annotated[
    int | None,
    typer.Option(
        parser=byte_count,
        metavar="BYTES",
        help="Maximum GPU memory for copies of the most used experts in host memory. The GPU computes them, and the "
        "CPU the others. By default half of the memory left free; 0 turns the cache off.",
        show_default=False,
    ),
]
CpuExpertsOption = Annotated[
    int | None,
    typer.Option(min=0, help="Number of last layers whose experts stay in host memory; by default as few as possible."),
]
SpeculativeOption = Annotated[
    SpeculativeConfig | None,
    typer.Option(
        "--speculative-config",
        parser=json_object,
        metavar="JSON",
        help='Speculative decoding, such as {"method": "ngram"}.',
        show_default=False,
    ),
]
MmprojOption = Annotated[
    Path | None,
    typer.Option(
        help="The model's image encoder (mmproj-*.gguf), or none; by default a matching file next to the model.",
        show_default=False,
    ),
]
MaxTokensOption = Annotated[
    int, typer.Option("--max-tokens", "-n", min=1, help="Maximum number of tokens to generate.")
]
MaxModelLenOption = Annotated[int | None, typer.Option(help="Context length: maximum tokens of prompt and answer.")]
ChatTemplateOption = Annotated[
    Path | None,
    typer.Option(
        help="A file with a chat template that replaces the model's; in `generate`, implies --chat.", show_default=False
    ),
]


def fail(message: str) -> NoReturn:
    """Ends the command with exit code 1."""
    typer.echo(f"error: {printable_lines(message)}", err=True)
    raise typer.Exit(1)


def say(text: str) -> None:
    """Reports on standard error. Names of files and models in the text may come from anyone."""
    typer.echo(printable_lines(text), err=True)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Reports errors of a command in one line, without a traceback."""

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
    """Shows the engine's warnings in the format of the program's errors, unless a log level was given."""
    logger = logging.getLogger("rocmforge")
    if not (logger.handlers or log_level()):
        handler = _Warnings(logging.WARNING)
        logger.addHandler(handler)


def show_log(level: int) -> None:
    """Shows messages from a level on with their times, unless a log level was given."""
    logger = logging.getLogger("rocmforge")
    for handler in logger.handlers[:]:
        if isinstance(handler, _Warnings):
            logger.removeHandler(handler)
    if not log_level():
        log.show(level)


class _Warnings(logging.Handler):
    """Writes to the stream that is stderr at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"{record.levelname.lower()}: {printable_lines(record.getMessage())}", err=True)


def utf8(text: bytes | str, what: str) -> str:
    """Input or an argument as it was meant, whatever the locale makes of bytes beyond ASCII."""
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeError as error:
        fail(f"{what}: {error}; give it in UTF-8")


def piped_text(data: bytes, what: str, *, first: bool = True) -> str:
    """Returns what a pipe or a file holds, without what programs add to a text: a byte order mark and a line's end.

    Args:
        data: The bytes, or a line of them.
        what: Their name in errors.
        first: True if they are the beginning, where a byte order mark may stand.
    """
    text = utf8(data, what)
    if first:
        text = text.removeprefix("\ufeff")
    return text.removesuffix("\n").removesuffix("\r")


def model_path(model: Path | None) -> Path:
    """Returns the file of the given model, or of the demo model."""
    if model is not None:
        return model_file(model, say)
    # Other commands do without the modules of a download.
    from rocmforge.hub import demo  # noqa: PLC0415

    path = demo.find()
    if path is None:
        fail(f"no model: give one with --model PATH, or get the demo model (98 MB): {demo.PULL}")
    typer.echo(f"model: {path} (no --model given: the demo model)", err=True)
    return path


def user_message(text: str, images: Sequence[Path | Image]) -> dict[str, Any]:
    """Returns a message of the user; images, by their files or read, precede its text."""
    if not images:
        return {"role": "user", "content": text}
    parts = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


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
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        typer.echo("\t".join(headers))
        for row in cells:
            typer.echo("\t".join(row))
        return
    # The import is for terminals: nothing else needs rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, title_justify="left")
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in cells:
        table.add_row(*map(escape, row))
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
    """Streams a piece of generated text. On a terminal, control characters are shown as escapes."""
    typer.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False)
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


def check_template(llm: LLM, path: Path, template: str | None, instead: str) -> None:
    """Ends the command if there is no chat template.

    Args:
        llm: The model.
        path: Its file.
        template: The template that was given in place of the model's.
        instead: What completes text without one.
    """
    if template is None and not llm.tokenizer.has_chat_template:
        fail(
            f"{path}: the model has no chat template, so it was probably not made for conversations: complete text "
            f"with {instead}, or give a template with --chat-template FILE"
        )


def template_text(file: Path | None) -> str | None:
    """Reads the chat template in a file."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        fail(f"{file}: {error}; give it in UTF-8")
