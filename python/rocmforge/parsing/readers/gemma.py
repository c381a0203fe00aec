"""Reads the tool calls of Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>`."""

import json
import re

from rocmforge.parsing.readers.calls import CallReader
from rocmforge.parsing.readers.json_text import Write, copy_json, copy_string, escaped, literal
from rocmforge.parsing.source import (
    MAX_WORD,
    SPACE,
    Source,
    Steps,
    expect,
    markers,
    run_length,
    skip_space,
    text_until,
    word,
)

_NAME = re.compile(r"[^\s{}<>()]*")
_QUOTE = '<|"|>'
_QUOTE_END = markers(_QUOTE)
_BARE_KEY = re.compile(r'[^:,{}\[\]<"]*')
_BARE_VALUE = re.compile(r'[^,{}\[\]<"]*')
_POINT_AT_END = re.compile(r"-?[0-9]+\.")


class GemmaReader(CallReader):
    """Reads what follows `<|tool_call>`."""

    __slots__ = ()

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        source = self.source
        if marker != "call:":
            yield from skip_space(source)
            if (yield from expect(source, ("call:",))) is None:
                return False
        yield from skip_space(source)
        name = yield from word(source, _NAME)
        yield from skip_space(source)
        if not self.accepts(name, known_only) or (yield from expect(source, ("{",))) is None:
            return False
        source.at -= 1
        self.start(name)
        if (yield from copy_json(source, self.output.arguments, _scalar)):
            yield from skip_space(source)
            yield from expect(source, ("<tool_call|>",))
        return True


def _scalar(source: Source, write: Write, is_key: bool) -> Steps[bool]:
    """Copies a text between its own quotation marks or JSON's, or without any."""
    if (yield from expect(source, (_QUOTE,))) is not None:
        return (yield from _quoted(source, write))
    if not source.exhausted() and source.text[source.at] == '"':
        return (yield from copy_string(source, write))
    return (yield from _unquoted(source, write, is_key))


def _quoted(source: Source, write: Write) -> Steps[bool]:
    """Copies a text up to its closing quotation mark."""
    write('"')
    if (yield from text_until(source, _QUOTE_END, lambda text: write(escaped(text)))) is None:
        return False
    source.at += len(_QUOTE)
    write('"')
    return True


def _unquoted(source: Source, write: Write, is_key: bool) -> Steps[bool]:
    """Copies a key or a value that ends at a sign of the object's."""
    length = yield from run_length(source, _BARE_KEY if is_key else _BARE_VALUE, MAX_WORD)
    if length > MAX_WORD:
        return False
    text = source.text[source.at : source.at + length]
    end = source.at + length
    if end < len(source.text) and source.text[end] in '<"':
        return False
    source.at = end
    if source.exhausted():
        return False
    write(_bare(text.strip(SPACE), is_key))
    return True


def _bare(text: str, is_key: bool) -> str:
    """The JSON of a text without quotation marks."""
    if not is_key:
        if _POINT_AT_END.fullmatch(text):
            return f"{text}0"
        if (value := literal(text)) is not None:
            return value
    return json.dumps(text, ensure_ascii=False)
