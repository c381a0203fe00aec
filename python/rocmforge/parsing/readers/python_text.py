"""Copies Python's literals as JSON while they are being written: the values of calls such as `f(a='x', b=[True])`."""

import re

from rocmforge.parsing.readers.json_text import (
    BRACKETS,
    Write,
    copy_escape,
    copy_json,
    copy_string,
    escaped,
    json_scalar,
    literal,
)
from rocmforge.parsing.source import MAX_WORD, Source, Steps, expect, peek, run_length, skip_space, word

PYTHON_BRACKETS = {**BRACKETS, "(": ")"}

_KEY = re.compile(r"[^\s=(),'\"]*")
_PLAIN = re.compile(r"[^'\\]*")
_SPACES = r"[ \t\r\n]{0,64}"
_NAME = r"[^\s=(),'\"]"
# A mark that ends a string, with what follows it, and one that may become such a mark: of a string within a list or an
# object, and of an argument.
_INNER_END = (re.compile(rf"'{_SPACES}[,)\]}}:]"), re.compile(rf"'{_SPACES}\Z"))
_ARGUMENT_END = (
    re.compile(rf"'{_SPACES}(?:\){_SPACES}(?:[,;\]<]|{_NAME}{{1,64}}\()|,{_SPACES}{_NAME}{{1,64}}{_SPACES}=)"),
    re.compile(rf"'{_SPACES}(?:\){_SPACES}{_NAME}{{0,64}}|,{_SPACES}{_NAME}{{0,64}}{_SPACES})?\Z"),
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "'": "'", '"': '"', "\\": "\\", "\n": ""}
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}))")
_CODE_BEGUN = re.compile(r"\\(?:x[0-9a-fA-F]?|U[0-9a-fA-F]{0,7})?\Z")
_WORD = re.compile(r"[-+.\w]*")
_GROUPED_NUMBER = re.compile(r"-?[0-9]+(?:_[0-9]+)+")


def python_scalar(source: Source, write: Write, is_key: bool) -> Steps[bool]:
    """Copies a string between single or double quotation marks or, where a value stands, a number or a word."""
    if source.text[source.at] == "'":
        return (yield from _single_quoted(source, write, _INNER_END))
    if source.text[source.at] == '"':
        return (yield from copy_string(source, write, _copy_mixed_escape))
    if not is_key:
        length = yield from run_length(source, _WORD, MAX_WORD)
        number = source.text[source.at : source.at + length]
        # JSON has no digits in groups.
        value = literal(number.replace("_", "")) if _GROUPED_NUMBER.fullmatch(number) else None
        if value is not None and source.at + length < len(source.text):
            write(value)
            source.at += length
            return True
    return (yield from json_scalar(source, write, is_key))


def _copy_escape(source: Source, write: Write) -> Steps[None]:
    """Copies an escape of Python's that begins with the next character."""
    if (code := _CODE.match(source.text, source.at)) is not None:
        number = int(code.group(1) or code.group(2), 16)
        write(escaped("\ufffd" if 0xD800 <= number < 0xE000 else chr(number)))
        source.at = code.end()
    elif _CODE_BEGUN.match(source.text, source.at) is not None:
        if source.ended:
            source.at = len(source.text)
        else:
            yield
    elif source.text[source.at + 1] == "u":
        yield from copy_escape(source, write)
    else:
        character = source.text[source.at + 1]
        write(escaped(_ESCAPES.get(character, "\\" + character)))
        source.at += 2


def _copy_mixed_escape(source: Source, write: Write) -> Steps[None]:
    """Copies an escape between double quotation marks, where models also write those of JSON."""
    if source.text[source.at + 1 : source.at + 2] == "/":
        write("/")
        source.at += 2
    else:
        yield from _copy_escape(source, write)


def _single_quoted(source: Source, write: Write, end: tuple[re.Pattern[str], re.Pattern[str]]) -> Steps[bool]:
    """Copies a string between single quotation marks.

    Templates write strings between these without escapes. So a mark ends the string only where a value can end, which
    `end` says.
    """
    ended, begun = end
    write('"')
    source.at += 1
    while True:
        if (plain := _PLAIN.match(source.text, source.at)) is not None and plain.group():
            write(escaped(plain.group()))
            source.at = plain.end()
        if source.exhausted():
            if source.ended:
                return False
            yield
            continue
        if source.text[source.at] == "\\":
            yield from _copy_escape(source, write)
            continue
        is_begun = begun.match(source.text, source.at) is not None
        if is_begun and not source.ended:
            yield
        elif is_begun or ended.match(source.text, source.at) is not None:
            write('"')
            source.at += 1
            return True
        else:
            write("'")
            source.at += 1


def copy_arguments(source: Source, write: Write) -> Steps[bool]:
    """Copies the arguments of a call, `a=1, b='x')`, as a JSON object.

    Returns:
        True if they are whole; the source then stands behind the closing parenthesis.
    """
    write("{")
    count = 0
    while True:
        yield from skip_space(source, ",")
        if (yield from peek(source)) == ")":
            source.at += 1
            write("}")
            return True
        key = yield from word(source, _KEY)
        yield from skip_space(source)
        if not key or (yield from expect(source, ("=",))) is None:
            return False
        write(f'{", " if count else ""}"{escaped(key)}": ')
        yield from skip_space(source)
        is_quoted = (yield from peek(source)) == "'"
        if is_quoted:
            is_whole = yield from _single_quoted(source, write, _ARGUMENT_END)
        else:
            is_whole = yield from copy_json(source, write, python_scalar, PYTHON_BRACKETS)
        if not is_whole:
            return False
        count += 1
