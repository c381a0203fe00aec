"""Copies JSON while it is being written, and stops where it ends or is none."""

import json
import re
from collections.abc import Callable

from rocmforge.parsing.source import SPACE, Source, Steps, expect, peek, skip_space

Write = Callable[[str], None]
Scalar = Callable[[Source, Write, bool], Steps[bool]]

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_LITERAL = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_MAX_LITERAL = 1024
# Models write Python's words where a template has shown them.
_WORDS = {word: word for word in ("true", "false", "null")} | {"True": "true", "False": "false", "None": "null"}


def literal(text: str) -> str | None:
    """The JSON of a number, `true`, `false`, `null` or one of Python's words for these; `None` for other texts."""
    return text if _NUMBER.fullmatch(text) else _WORDS.get(text)


def escaped(text: str) -> str:
    """A text as it stands inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def copy_string(source: Source, write: Write) -> Steps[bool]:
    """Copies a JSON string. Control characters, and backslashes that begin no escape, are escaped.

    Returns:
        Whether the string is whole.
    """
    write('"')
    source.at += 1
    while True:
        if (plain := _PLAIN.match(source.text, source.at)) is not None and plain.group():
            write(plain.group())
            source.at = plain.end()
        if source.exhausted():
            if source.ended:
                return False
            yield
            continue
        character = source.text[source.at]
        if character == '"':
            write('"')
            source.at += 1
            return True
        if character != "\\":
            write(escaped(character))
            source.at += 1
        elif (escape := _ESCAPE.match(source.text, source.at)) is not None:
            write(escape.group())
            source.at = escape.end()
        elif _ESCAPE_BEGUN.match(source.text, source.at) is None:
            write("\\\\")
            source.at += 1
        elif source.ended:
            source.at = len(source.text)
        else:
            yield


def json_scalar(source: Source, write: Write, is_key: bool) -> Steps[bool]:
    """Copies a JSON string or, where a value stands, a number or a word.

    Returns:
        Whether it is whole. If it is none at all, nothing was read.
    """
    if source.text[source.at] == '"':
        return (yield from copy_string(source, write))
    while not is_key:
        found = _LITERAL.match(source.text, source.at)
        text = "" if found is None else found.group()
        if len(text) > _MAX_LITERAL:
            return False
        if source.at + len(text) < len(source.text):
            if (value := literal(text)) is None:
                return False
            write(value)
            source.at += len(text)
            return True
        if source.ended:
            write(text)
            source.at = len(source.text)
            return False
        yield
    return False


def copy_json(source: Source, write: Write, scalar: Scalar = json_scalar) -> Steps[bool]:
    """Copies one value. A comma that nothing follows is left out.

    Args:
        source: Stands in front of the value.
        write: Is given the pieces.
        scalar: Copies keys and values that are neither objects nor arrays.

    Returns:
        Whether the value is whole; otherwise the source stands in front of what does not belong to it.
    """
    closers: list[str] = []
    comma = ""
    # This says what may come: a "key" or the end of the object, an "item" or the end of the array, a "value", or
    # what stands "after" a value.
    state = "value"
    while True:
        if (character := (yield from peek(source))) == "":
            return False
        if character in SPACE:
            source.at += 1
            # Space behind a comma waits with it.
            write("" if comma else character)
            comma = comma and comma + character
        elif state != "value" and closers and character == closers[-1]:
            source.at += 1
            write(closers.pop())
            comma, state = "", "after"
        elif state == "after":
            if character != ",":
                return False
            source.at += 1
            comma, state = ",", "key" if closers[-1] == "}" else "item"
        else:
            write(comma)
            comma = ""
            if state != "key" and character in "{[":
                source.at += 1
                write(character)
                closers.append("}" if character == "{" else "]")
                state = "key" if character == "{" else "item"
            elif not (yield from _key_or_scalar(source, write, scalar, state == "key")):
                return False
            else:
                state = "value" if state == "key" else "after"
        if state == "after" and not closers:
            return True


def _key_or_scalar(source: Source, write: Write, scalar: Scalar, is_key: bool) -> Steps[bool]:
    """Copies a scalar or, where a key stands, a key with its colon."""
    if not (yield from scalar(source, write, is_key)):
        return False
    if is_key:
        yield from skip_space(source)
        if (yield from expect(source, (":",))) is None:
            return False
        write(":")
    return True
