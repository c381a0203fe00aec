"""Reads tool calls of any shape that `CallShape` describes."""

import re
from collections.abc import Sequence

from rocmforge.parsing.output import Output
from rocmforge.parsing.readers.calls import CallReader
from rocmforge.parsing.readers.json_text import copy_json, escaped
from rocmforge.parsing.readers.python_text import copy_arguments
from rocmforge.parsing.schema import Tools, Value
from rocmforge.parsing.shapes import CDATA, CallShape, pieces
from rocmforge.parsing.source import Source, Steps, expect, markers, peek, skip_space, text_until, word

_NAME = re.compile(r"[\w.:/-]*")
_KEY = re.compile(r'[^<>"\r\n]*')
_CDATA_END = "]]>"


class ShapedReader(CallReader):
    """Reads the calls of one shape. White space between its marks and words may be there or not."""

    __slots__ = ("_after", "_between", "_cdata_end", "_close", "_first", "_middle", "_shape", "_value_end")

    def __init__(self, source: Source, output: Output, tools: Tools, shape: CallShape) -> None:
        super().__init__(source, output, tools)
        self._shape = shape
        self.name_key = shape.name_key
        self.argument_keys = (shape.arguments_key,)
        # The marker has been read when the reader begins.
        self._first = pieces(shape.open + shape.before)[1:]
        self._between = pieces(shape.between + shape.before)
        self._middle = ["("] if shape.kind == "python" else pieces(shape.middle)
        self._after = pieces(shape.after)
        self._close = pieces(shape.close)
        ends = dict.fromkeys((shape.value_close.rstrip(), shape.value_close.strip()))
        self._value_end = markers(*ends) if shape.value_close else None
        # Templates do not escape what a section holds, and code may have its mark: the value's end has to follow.
        self._cdata_end = markers(*(_CDATA_END + space + end for end in ends for space in ("", "\n")))

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        del marker
        if not (yield from self._follow(self._first)) or not (yield from self._call(known_only)):
            return False
        source = self.source
        ways = [way[0] for way in (self._close, self._between) if way]
        while True:
            source.mark()
            # The end of a call is left out now and then.
            if (yield from self._follow(self._after)) or source.exhausted():
                source.release()
            else:
                source.rewind()
            source.mark()
            yield from skip_space(source)
            found = yield from expect(source, ways)
            if (found is None and source.exhausted()) or (self._close and found == self._close[0]):
                source.release()
                yield from self._follow(self._close[1:] if found else ())
                return True
            # Some shapes have nothing but white space between calls.
            again = (found is not None) == bool(self._between) and (yield from self._follow(self._between[1:]))
            if not again or not (yield from self._call(known_only)):
                source.rewind()
                return True

    def _follow(self, texts: Sequence[str]) -> Steps[bool]:
        """Reads markers and words with white space between them; true if all of them were present."""
        for text in texts:
            yield from skip_space(self.source)
            if (yield from expect(self.source, (text,))) is None:
                return False
        return True

    def _call(self, known_only: bool) -> Steps[bool]:
        """Reads a call; true if there is one."""
        self.started = False
        if self._shape.kind == "json":
            return (yield from self.read_object(known_only, bare=self._shape.bare))
        source = self.source
        yield from skip_space(source)
        given = name = yield from word(source, _NAME)
        if self._shape.names_by_id:
            name = given.removeprefix("functions.").rpartition(":")[0]
        if not self.accepts(name, known_only) or not (yield from self._follow(self._middle)):
            return False
        match self._shape.kind:
            case "named":
                yield from skip_space(source)
                if (yield from peek(source)) == "{":
                    self.start(name, given if self._shape.names_by_id else None)
                    yield from copy_json(source, self.output.arguments)
            case "python":
                self.start(name)
                yield from copy_arguments(source, self.output.arguments)
            case _:
                self.start(name)
                yield from self._tagged(name)
        return self.started

    def _tagged(self, name: str) -> Steps[None]:
        """Reads tagged values, and writes them as one object."""
        source, shape, write = self.source, self._shape, self.output.arguments
        write("{")
        opened, ended = pieces(shape.key_open), pieces(shape.after + shape.close)
        count = 0
        while True:
            source.mark()
            yield from skip_space(source)
            found = yield from expect(source, (opened[0], ended[0]))
            if found != opened[0]:
                # A call that is cut off is not closed, so that it does not look complete.
                if found is not None or not source.exhausted():
                    write("}")
                source.rewind()
                return
            source.release()
            yield from self._follow(opened[1:])
            key = yield from word(source, _KEY)
            closes = [close for close in (shape.key_close, shape.other_key_close) if close]
            close = yield from expect(source, [each.rstrip() for each in closes])
            if not key or close is None or self._value_end is None:
                return
            types = self.tools.types(name, key)
            if shape.other_key_close:
                types = {"string"} if close == shape.key_close.rstrip() else types - {"string"} or {"number"}
            write(f'{", " if count else ""}"{escaped(key)}": ')
            value = Value(write, types)
            if shape.key_close.endswith("\n") and (yield from peek(source)) == "\n":
                source.at += 1
            if shape.has_cdata and (yield from self._cdata(value)):
                end = yield from text_until(source, self._value_end, lambda _: None)
            else:
                end = yield from text_until(source, self._value_end, value.add)
            if end is None:
                return
            value.end()
            source.at += len(end)
            count += 1

    def _cdata(self, value: Value) -> Steps[bool]:
        """Reads a CDATA section into a value; true if there is one."""
        source = self.source
        source.mark()
        if (yield from expect(source, (CDATA,))) is None:
            source.rewind()
            return False
        source.release()
        if (yield from text_until(source, self._cdata_end, value.add)) is not None:
            source.at += len(_CDATA_END)
        return True
