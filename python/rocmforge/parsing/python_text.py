"""Copies Python's literals as JSON while they are being written: the values of calls such as `f(a='x', b=[True])`."""

import re

from rocmforge.parsing.json_text import Write, copy_json, copy_string, escaped, json_scalar
from rocmforge.parsing.source import Source, Steps, expect, peek, skip_space, word

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


def python_scalar(source: Source, write: Write, is_key: bool) -> Steps[bool]:
    """Copies a string between single or double quotation marks or, where a value stands, a number or a word."""
    if source.text[source.at] == "'":
        return (yield from _single_quoted(source, write, _INNER_END))
    if source.text[source.at] == '"':
        return (yield from copy_string(source, write))
    return (yield from json_scalar(source, write, is_key))


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
            behind = source.text[source.at + 1 : source.at + 2]
            if not behind and not source.ended:
                yield
                continue
            write(escaped(_ESCAPES.get(behind, "\\" + behind)))
            source.at += 2
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
        value = _single_quoted(source, write, _ARGUMENT_END) if is_quoted else copy_json(source, write, python_scalar)
        if not (yield from value):
            return False
        count += 1
