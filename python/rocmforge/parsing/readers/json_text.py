"""Copies JSON while it is being written, and stops where it ends or is none.

What is copied can be read by every client: numbers beyond the range of a double become the largest one, `NaN` becomes
`null`, and a surrogate without its other half becomes U+FFFD. JSON's grammar allows the first and the last of these,
but few programs can hold them, and UTF-8 cannot.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import inf, isfinite

from rocmforge.parsing.source import SPACE, Source, Steps, expect, peek, run_length, skip_space

Write = Callable[[str], None]
Scalar = Callable[[Source, Write, bool], Steps[bool]]
Escape = Callable[[Source, Write], Steps[None]]

BRACKETS = {"{": "}", "[": "]"}

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
# The first and the second half of a character beyond U+FFFF.
_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf'\\(?:["\\/bfnrt]|(?!u[dD][89a-fA-F])u[0-9a-fA-F]{{4}}|{_HIGH}\\{_LOW})')
_HALF = re.compile(rf"\\(?:{_HIGH}|{_LOW})")
_ESCAPE_BEGUN = re.compile(rf"\\(?:u[0-9a-fA-F]{{0,3}}|{_HIGH}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?)?\Z")
_LITERAL = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_MAX_LITERAL = 1024
MAX_DEPTH = 100
"""Objects and arrays within each other that arguments may have; templates and clients take little more."""
_LARGEST = "1.7976931348623157e308"
# Models write Python's literals if a template contains them.
_WORDS = {word: word for word in ("true", "false", "null")} | {"True": "true", "False": "false", "None": "null"}


# Numbers of Python's that JSON lacks.
_NO_NUMBERS = {"NaN": "null", "Infinity": _LARGEST, "-Infinity": f"-{_LARGEST}"}


def literal(text: str) -> str | None:
    """The JSON of a number, `true`, `false`, `null` or one of Python's words for these; `None` for other texts."""
    if not _NUMBER.fullmatch(text):
        return _WORDS.get(text)
    if isfinite(number := float(text)):
        return text
    return _LARGEST if number == inf else f"-{_LARGEST}"


def escaped(text: str) -> str:
    """A text as it stands inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def copy_escape(source: Source, write: Write) -> Steps[None]:
    """Copies an escape that begins with the next character, or escapes this backslash.

    Half of a character becomes U+FFFD.
    """
    if (escape := _ESCAPE.match(source.text, source.at)) is not None:
        write(escape.group())
        source.at = escape.end()
    elif _ESCAPE_BEGUN.match(source.text, source.at) is not None:
        if source.ended:
            source.at = len(source.text)
        else:
            yield
    elif _HALF.match(source.text, source.at) is not None:
        write("\\ufffd")
        source.at += len("\\ufffd")
    else:
        write("\\\\")
        source.at += 1


def copy_string(source: Source, write: Write, escape: Escape = copy_escape) -> Steps[bool]:
    """Copies a JSON string. Control characters, and backslashes that begin no escape, are escaped.

    Args:
        source: Stands in front of the quotation mark.
        write: Is given the pieces.
        escape: Copies an escape, or waits for more of it.

    Returns:
        True if the string is whole.
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
        if character == "\\":
            yield from escape(source, write)
        else:
            write(escaped(character))
            source.at += 1


def json_scalar(source: Source, write: Write, is_key: bool) -> Steps[bool]:
    """Copies a JSON string or, where a value stands, a number or a word.

    Returns:
        True if it is whole. If it is none at all, nothing was read.
    """
    if source.text[source.at] == '"':
        return (yield from copy_string(source, write))
    if is_key:
        return False
    length = yield from run_length(source, _LITERAL, _MAX_LITERAL)
    if length > _MAX_LITERAL:
        return False
    text = source.text[source.at : source.at + length]
    value = (_NO_NUMBERS.get(text) or literal(text)) if source.at + length < len(source.text) else None
    if value is not None or source.at + length == len(source.text):
        write(value or text)
        source.at += length
    return value is not None


def copy_json(
    source: Source, write: Write, scalar: Scalar = json_scalar, brackets: Mapping[str, str] = BRACKETS
) -> Steps[bool]:
    """Copies one value. A comma that nothing follows is left out.

    Args:
        source: Stands in front of the value.
        write: Is given the pieces.
        scalar: Copies keys and values that are neither objects nor arrays.
        brackets: The signs that begin an object or an array, and those that end it.

    Returns:
        True if the value is whole; otherwise the source stands in front of what does not belong to it.
    """
    closers: list[str] = []
    comma = ""
    # The next expected part: a "key" or the end of the object, an "item" or the end of the array, a "value", or
    # the sign "after" a value.
    state = "value"
    while True:
        if (character := (yield from peek(source))) == "":
            return False
        if character in SPACE:
            source.at += 1
            # Space after a comma is held back with it.
            write("" if comma else character)
            comma = comma and comma + character
        elif state != "value" and closers and character == closers[-1]:
            source.at += 1
            write("}" if closers.pop() == "}" else "]")
            comma, state = "", "after"
        elif state == "after":
            if character != ",":
                return False
            source.at += 1
            comma, state = ",", "key" if closers[-1] == "}" else "item"
        else:
            write(comma)
            comma = ""
            if state != "key" and character in brackets:
                if len(closers) == MAX_DEPTH:
                    return False
                source.at += 1
                write("{" if character == "{" else "[")
                closers.append(brackets[character])
                state = "key" if character == "{" else "item"
            elif not (yield from _key_or_scalar(source, write, scalar, state == "key")):
                return False
            else:
                state = "value" if state == "key" else "after"
        if state == "after" and not closers:
            return True


def whole_json(text: str, scalar: Scalar = json_scalar, brackets: Mapping[str, str] = BRACKETS) -> str | None:
    """The JSON of a text as `copy_json` copies it; `None` for a text that is more or less than one value."""
    source = Source()
    source.feed(text)
    source.ended = True
    parts: list[str] = []
    steps = copy_json(source, parts.append, scalar, brackets)
    try:
        next(steps)
    except StopIteration as end:
        return "".join(parts) if end.value and not source.text[source.at :].strip(SPACE) else None
    raise AssertionError("a text that has ended is not waited for")


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
