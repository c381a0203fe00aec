"""Reads tool calls that are JSON: those of Hermes, Llama and Mistral."""

import json
import re
from abc import ABC, abstractmethod
from typing import Any

from rocmforge.parsing.json_text import copy_json, copy_string
from rocmforge.parsing.output import Output
from rocmforge.parsing.schema import Tools
from rocmforge.parsing.source import Source, Steps, expect, peek, skip_space, word

_ARGUMENTS = ("arguments", "parameters")
# An object with other keys is no call where no marker says that it is one.
_BARE_KEYS = frozenset({"name", "type", *_ARGUMENTS})
_NAME = re.compile(r"[\w.:/-]*")
_ID = re.compile(r"[A-Za-z0-9]*")
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")


class CallReader(ABC):
    """Reads the tool calls that follow a marker.

    Until a call is sure to be one, the source is held, so that whoever asks can go back. From then on text is let go
    of, and events are given as they come.
    """

    __slots__ = ("output", "source", "started", "tools")

    def __init__(self, source: Source, output: Output, tools: Tools) -> None:
        self.source = source
        self.output = output
        self.tools = tools
        self.started = False
        """Whether the call that is read has begun, so that there is no way back."""

    @abstractmethod
    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows a marker.

        Args:
            marker: The marker, which was read.
            known_only: Whether only the name of a tool makes a call.

        Returns:
            Whether there was a call. If not, nothing was written.
        """

    def attempt(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads a marker and what follows it; where there is no call, nothing is read."""
        start = self.source.at
        self.source.held = True
        self.source.at += len(marker)
        if (yield from self.read(marker, known_only)):
            return True
        self.source.at = start
        self.source.held = False
        return False

    def accepts(self, name: Any, known_only: bool) -> bool:
        """Whether a name may be one of a tool."""
        return isinstance(name, str) and (name in self.tools or (name.isprintable() and name != "" and not known_only))

    def start(self, name: str, given_id: str | None = None) -> None:
        """Begins a call."""
        self.started = True
        self.source.held = False
        self.output.start_call(name, given_id)

    def read_object(self, known_only: bool, bare: bool = False) -> Steps[bool]:
        """Reads `{"name": …, "arguments": {…}}`, in any order and with further keys unless it is bare.

        Returns:
            Whether there was a call.
        """
        source = self.source
        self.started = False
        yield from skip_space(source)
        if (yield from expect(source, ("{",))) is None:
            return False
        entries: dict[str, str] = {}
        more = True
        while more:
            yield from skip_space(source)
            if (yield from peek(source)) != '"':
                break
            if not (yield from self._entry(entries, known_only, bare)):
                return self.started
            yield from skip_space(source)
            more = (yield from expect(source, (",",))) is not None
        if (yield from expect(source, ("}",))) is not None and not self.started:
            self._give(entries, bare)
        return self.started

    def _entry(self, entries: dict[str, str], known_only: bool, bare: bool) -> Steps[bool]:
        """Reads a key and its value; returns whether they fit a call. Arguments are given if the name is known."""
        key = yield from self._key()
        is_arguments = key in _ARGUMENTS
        if key is None:
            return False
        if bare and not self.started and (key not in _BARE_KEYS or (is_arguments and "name" not in entries)):
            return False
        if is_arguments and "name" in entries and not self.started and (yield from peek(self.source)) == "{":
            self.start(_loaded(entries["name"]), _given_id(entries))
            return (yield from copy_json(self.source, self.output.arguments))
        parts: list[str] = []
        if not (yield from copy_json(self.source, parts.append)):
            return False
        entries["arguments" if is_arguments else key] = "".join(parts)
        return key != "name" or self.started or self.accepts(_loaded(entries["name"]), known_only)

    def _key(self) -> Steps[str | None]:
        """Reads a key and its colon; `None` if either is not there."""
        parts: list[str] = []
        whole = yield from copy_string(self.source, parts.append)
        yield from skip_space(self.source)
        if not whole or (yield from expect(self.source, (":",))) is None:
            return None
        yield from skip_space(self.source)
        return str(_loaded("".join(parts)))

    def _give(self, entries: dict[str, str], bare: bool) -> None:
        """Gives a call whose arguments were not given as they came."""
        if "name" not in entries or (bare and "arguments" not in entries):
            return
        arguments = entries.get("arguments", "null")
        value = _loaded(arguments)
        if isinstance(value, str):
            # Some models write the arguments as a string that holds JSON.
            arguments, value = value, _loaded(value)
        if arguments == "null":
            arguments, value = "{}", {}
        if isinstance(value, dict):
            self.start(_loaded(entries["name"]), _given_id(entries))
            self.output.arguments(arguments)


def _loaded(text: str) -> Any:
    """The value of a JSON text; `None` for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _given_id(entries: dict[str, str]) -> str | None:
    """The id that the model gave, if it has Mistral's form."""
    given = _loaded(entries.get("id", "null"))
    return given if isinstance(given, str) and _MISTRAL_ID.fullmatch(given) else None


class HermesReader(CallReader):
    """Reads `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; a block may hold more than one object."""

    __slots__ = ()

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        del marker
        if not (yield from self.read_object(known_only)):
            return False
        source = self.source
        while True:
            source.held, start = True, source.at
            # Models write a brace too many now and then.
            yield from skip_space(source, "}")
            if (yield from expect(source, ("</tool_call>",))) is not None or source.exhausted():
                break
            if not (yield from self.read_object(known_only)):
                source.at = start
                break
        source.held = False
        return True


class LlamaReader(CallReader):
    """Reads `{"name": …, "parameters": {…}}`, which may follow `<|python_tag|>`; a semicolon may part calls."""

    __slots__ = ()

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        source = self.source
        if marker == "{":
            source.at -= 1
        if not (yield from self.read_object(known_only, bare=True)):
            return False
        while True:
            source.held, start = True, source.at
            yield from skip_space(source, ";")
            if source.exhausted():
                break
            if not (yield from self.read_object(True, bare=True)):
                source.at = start
                break
        source.held = False
        return True


class MistralReader(CallReader):
    """Reads `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]` and `[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{…}`."""

    __slots__ = ()

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        del marker
        source = self.source
        yield from skip_space(source)
        match (yield from peek(source)):
            case "[":
                source.at += 1
                return (yield from self._list(known_only))
            case "{":
                return (yield from self.read_object(known_only))
        return (yield from self._named(known_only))

    def _list(self, known_only: bool) -> Steps[bool]:
        source = self.source
        if not (yield from self.read_object(known_only)):
            return False
        while True:
            source.held, start = True, source.at
            yield from skip_space(source)
            end = yield from expect(source, (",", "]"))
            if end == "]" or (end is None and source.exhausted()):
                break
            if end is None or not (yield from self.read_object(known_only)):
                source.at = start
                break
        source.held = False
        return True

    def _named(self, known_only: bool) -> Steps[bool]:
        source = self.source
        name = yield from word(source, _NAME)
        if not self.accepts(name, known_only):
            return False
        given_id = ""
        if (mark := (yield from expect(source, ("[CALL_ID]", "[ARGS]")))) == "[CALL_ID]":
            given_id = yield from word(source, _ID)
            mark = yield from expect(source, ("[ARGS]",))
        if mark is not None:
            yield from skip_space(source)
        if (yield from peek(source)) != "{":
            return False
        self.start(name, given_id)
        yield from copy_json(source, self.output.arguments)
        return True
