"""The messages that a person types, or that a pipe holds, for `rocmforge chat`."""

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import typer

from rocmforge.cli.common import fail, piped_text, utf8

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

PROMPT, MORE = "> ", "... "
QUOTES = '"""'
MAX_HISTORY = 1000


class LineReader:
    """Reads messages; on a terminal with editing, and with a history that outlives the program."""

    def __init__(self) -> None:
        self._readline: ModuleType | None = None
        self._begun = False

    def __enter__(self) -> Self:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            return self
        # A Python that was built without it still reads lines.
        with contextlib.suppress(ImportError):
            import readline  # noqa: PLC0415

            self._readline = readline
            # A paste of several lines is one message: it waits for Enter.
            readline.parse_and_bind("set enable-bracketed-paste on")
            readline.set_history_length(MAX_HISTORY)
            with contextlib.suppress(FileNotFoundError):
                self._keep(readline.read_history_file)
        return self

    def __exit__(self, *_: object) -> None:
        if self._readline is not None:
            self._keep(self._readline.write_history_file)

    def read(self) -> str | None:
        """The next message; `None` at the end of the input."""
        line = _line(PROMPT, first=not self._begun)
        self._begun = True
        if line is None or not line.lstrip().startswith(QUOTES):
            return line
        text = line.lstrip().removeprefix(QUOTES)
        while not text.rstrip().endswith(QUOTES):
            more = _line(MORE)
            if more is None:
                return text
            text += f"\n{more}"
        return text.rstrip().removesuffix(QUOTES).strip("\n")

    def _keep(self, act: "Callable[[Path], object]") -> None:
        """Reads or writes the history; a folder that cannot be written to is said, and costs the history alone."""
        file = history_file()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Other users must not read the history, which has the conversations.
            file.touch(mode=0o600)
            act(file)
        except OSError as error:
            typer.echo(f"the history is not kept: {error}", err=True)


def history_file() -> Path:
    """The history's place by the XDG base directory specification, which has relative paths ignored."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = state if state.is_absolute() else Path.home() / ".local" / "state"
    return state / "rocmforge" / "chat_history"


def _line(prompt: str, *, first: bool = False) -> str | None:
    if not sys.stdin.isatty():
        # Bytes, because Python's decoding of invalid text depends on the locale and on PYTHONIOENCODING.
        line = sys.stdin.buffer.readline()
        return piped_text(line, "stdin", first=first) if line else None
    try:
        if not sys.stdout.isatty():
            # The answers go to a file; the prompt is not part of them.
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        return utf8(input(prompt), "stdin")
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        fail(f"stdin: {error}; give it in UTF-8")
