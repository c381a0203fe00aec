"""Reads tool calls in JSON: the formats of Hermes, Llama and Mistral."""

import json
import re
from abc import ABC, abstractmethod
from typing import Any

from rocmforge.parsing.output import Output
from rocmforge.parsing.readers.json_text import copy_json, copy_string, whole_json
from rocmforge.parsing.schema import Tools
from rocmforge.parsing.source import Source, Steps, expect, peek, skip_space, word

_ARGUMENTS = ("arguments", "parameters")
# Without a marker, an object with keys besides these, its name and its arguments is not a call.
_BARE_KEYS = ("type", "id")
_NAME = re.compile(r"[\w.:/-]*")
_ID = re.compile(r"[A-Za-z0-9]*")
_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}")


class CallReader(ABC):
    """Reads the tool calls that follow a marker.

    The source keeps a mark until a call is certain, so the reader can go back. From then on, text is released and
    events are emitted as they come.
    """

    __slots__ = ("argument_keys", "name_key", "output", "source", "started", "tools")

    def __init__(self, source: Source, output: Output, tools: Tools) -> None:
        self.source = source
        self.output = output
        self.tools = tools
        self.name_key = "name"
        self.argument_keys: tuple[str, ...] = _ARGUMENTS
        self.started = False
        """True if the current call has begun, so the reader cannot go back."""

    @abstractmethod
    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows a marker.

        Args:
            marker: The marker, which was already read.
            known_only: True if a call must have the name of a known tool.

        Returns:
            True if there was a call. If not, nothing was written.
        """

    def attempt(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads a marker and the call that follows it; if there is no call, nothing is read."""
        if not self.source.may_try():
            return False
        self.source.mark()
        self.source.at += len(marker)
        if (yield from self.read(marker, known_only)):
            return True
        self.source.rewind()
        return False

    def accepts(self, name: Any, known_only: bool) -> bool:
        """True if a name may be the name of a tool."""
        return isinstance(name, str) and (name in self.tools or (name.isprintable() and name != "" and not known_only))

    def start(self, name: str, given_id: str | None = None) -> None:
        """Begins a call."""
        self.started = True
        self.source.release()
        self.output.start_call(name, given_id)

    def read_object(self, known_only: bool, bare: bool = False) -> Steps[bool]:
        """Reads `{"name": …, "arguments": {…}}`, in any order, and with further keys unless it is bare.

        Returns:
            True if there was a call.
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
        """Reads a key and its value; true if they fit a call. Emits arguments at once if the name is known."""
        key = yield from self._key()
        is_arguments = key in self.argument_keys
        if key is None:
            return False
        if bare and not self.started:
            known = is_arguments or key == self.name_key or key in _BARE_KEYS
            if not known or (is_arguments and self.name_key not in entries):
                return False
        # A value that can be neither name nor type ends the attempt at once: a bare object may be an answer.
        if (key == self.name_key or (bare and not is_arguments)) and (yield from peek(self.source)) != '"':
            return False
        if is_arguments and self.name_key in entries and not self.started and (yield from peek(self.source)) == "{":
            self.start(_loaded(entries[self.name_key]), _given_id(entries))
            return (yield from copy_json(self.source, self.output.arguments))
        parts: list[str] = []
        if not (yield from copy_json(self.source, parts.append)):
            return False
        entries["arguments" if is_arguments else key] = "".join(parts)
        return key != self.name_key or self.started or self.accepts(_loaded(entries[key]), known_only)

    def _key(self) -> Steps[str | None]:
        """Reads a key and its colon; returns `None` if either is missing."""
        parts: list[str] = []
        whole = yield from copy_string(self.source, parts.append)
        yield from skip_space(self.source)
        if not whole or (yield from expect(self.source, (":",))) is None:
            return None
        yield from skip_space(self.source)
        return str(_loaded("".join(parts)))

    def _give(self, entries: dict[str, str], bare: bool) -> None:
        """Emits a call whose arguments were not emitted as they came."""
        if self.name_key not in entries or (bare and "arguments" not in entries):
            return
        arguments = entries.get("arguments", "null")
        value = _loaded(arguments)
        if isinstance(value, str):
            # Some models write the arguments as a string that holds JSON.
            arguments, value = whole_json(value) or "", _loaded(value)
        if arguments == "null":
            arguments, value = "{}", {}
        if isinstance(value, dict):
            self.start(_loaded(entries[self.name_key]), _given_id(entries))
            self.output.arguments(arguments)


def _loaded(text: str) -> Any:
    """Returns the value of a JSON text; `None` for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _given_id(entries: dict[str, str]) -> str | None:
    """Returns the id that the model gave, if it has Mistral's format."""
    given = _loaded(entries.get("id", "null"))
    return given if isinstance(given, str) and _MISTRAL_ID.fullmatch(given) else None


class HermesReader(CallReader):
    """Reads `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

    A block may contain several objects, with or without a list around them, and a code fence.
    """

    __slots__ = ()

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        del marker
        source = self.source
        yield from skip_space(source)
        if (yield from expect(source, ("```",))) is not None:
            yield from expect(source, ("json",))
        yield from skip_space(source, "[")
        if not (yield from self.read_object(known_only)):
            return False
        while True:
            source.mark()
            # Models sometimes write a superfluous brace.
            yield from skip_space(source, "},]`")
            if (yield from expect(source, ("</tool_call>",))) is not None or source.exhausted():
                source.release()
                return True
            if not (yield from self.read_object(known_only)):
                source.rewind()
                return True


class LlamaReader(CallReader):
    """Reads `{"name": …, "parameters": {…}}`, which may follow `<|python_tag|>`.

    Several calls are separated by semicolons or commas, or form a list.
    """

    __slots__ = ()

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        source = self.source
        if marker == "{":
            source.at -= 1
        listed = marker == "["
        if marker == "<|python_tag|>":
            yield from skip_space(source)
            listed = (yield from expect(source, ("[",))) is not None
        if not (yield from self.read_object(known_only, bare=True)):
            return False
        while True:
            source.mark()
            yield from skip_space(source, ";,")
            if source.exhausted() or (listed and (yield from expect(source, ("]",))) is not None):
                source.release()
                return True
            if not (yield from self.read_object(True, bare=True)):
                source.rewind()
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
            source.mark()
            yield from skip_space(source)
            end = yield from expect(source, (",", "]"))
            if end == "]" or (end is None and source.exhausted()):
                source.release()
                return True
            if end is None or not (yield from self.read_object(known_only)):
                source.rewind()
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
