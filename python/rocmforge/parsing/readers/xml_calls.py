"""Reads tool calls whose arguments stand between tags: those of Qwen's coders and of GLM."""

import re

from rocmforge.parsing.readers.calls import CallReader
from rocmforge.parsing.readers.json_text import escaped
from rocmforge.parsing.schema import Value
from rocmforge.parsing.source import Steps, expect, markers, peek, skip_space, text_until, word

_NAME = re.compile(r"[^\s<>{}]*")
_KEY = re.compile(r"[^<>\r\n]*")
# Models sometimes omit a parameter's end. The end of the call or the next parameter then ends it.
_QWEN_NEXT = "\n<parameter="
_QWEN_VALUE_END = markers("\n</parameter>", "</parameter>", _QWEN_NEXT, "\n</function>\n</tool_call>")
_GLM_KEY_END = markers("</arg_key>", "<arg_value>")
_GLM_VALUE_END = markers("</arg_value>")


class _TaggedArguments(CallReader):
    """Writes an object key by key."""

    __slots__ = ()

    def begin_value(self, name: str, key: str, count: int) -> Value:
        """Writes a key; returns what the value is given to."""
        self.output.arguments(f'{", " if count else ""}"{escaped(key)}": ')
        return Value(self.output.arguments, self.tools.types(name, key))


class QwenReader(_TaggedArguments):
    r"""Reads `<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>`."""

    __slots__ = ()

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        source = self.source
        if marker == "<tool_call>":
            yield from skip_space(source)
            if (yield from expect(source, ("<function=",))) is None:
                return False
        name = yield from word(source, _NAME)
        if not self.accepts(name, known_only) or (yield from expect(source, (">",))) is None:
            return False
        self.start(name)
        self.output.arguments("{")
        count = 0
        while True:
            yield from skip_space(source)
            tag = yield from expect(source, ("<parameter=", "</function>"))
            if tag != "<parameter=":
                break
            if not (yield from self._parameter(name, count)):
                return True
            count += 1
        if tag is not None or not source.exhausted():
            self.output.arguments("}")
        yield from skip_space(source)
        yield from expect(source, ("</tool_call>",))
        return True

    def _parameter(self, name: str, count: int) -> Steps[bool]:
        """Reads what follows `<parameter=`; returns whether it is whole."""
        source = self.source
        key = yield from word(source, _KEY)
        if not key or (yield from expect(source, (">",))) is None:
            return False
        value = self.begin_value(name, key, count)
        if (yield from peek(source)) == "\n":
            source.at += 1
        while (end := (yield from text_until(source, _QWEN_VALUE_END, value.add))) is not None:
            if end.endswith("</parameter>"):
                source.at += len(end)
                break
            if (yield from self._ends(name, end)):
                break
            source.at += len(end)
            value.add(end)
        else:
            return False
        value.end()
        return True

    def _ends(self, name: str, end: str) -> Steps[bool]:
        """True if a tag ends a value that has no closing tag; a value may contain such tags.

        It ends the value if a parameter of the tool follows, or if the call ends and another call or nothing follows.
        """
        source = self.source
        source.mark()
        source.at += len(end)
        if end == _QWEN_NEXT:
            key = yield from word(source, _KEY)
            keys = self.tools.parameters(name)
            ended = (yield from peek(source)) == ">" and (not keys or key in keys)
        else:
            yield from skip_space(source)
            ended = source.exhausted() or (yield from expect(source, ("<tool_call>",))) is not None
        source.rewind()
        return ended


class GlmReader(_TaggedArguments):
    """Reads `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`, with white space."""

    __slots__ = ()

    def read(self, marker: str, known_only: bool) -> Steps[bool]:
        """Reads what follows the marker."""
        del marker
        source = self.source
        yield from skip_space(source)
        name = yield from word(source, _NAME)
        yield from skip_space(source)
        if not self.accepts(name, known_only):
            return False
        tag = yield from expect(source, ("<arg_key>", "</tool_call>"))
        if tag is None:
            return False
        self.start(name)
        self.output.arguments("{")
        count = 0
        while tag == "<arg_key>":
            parts: list[str] = []
            end = yield from text_until(source, _GLM_KEY_END, parts.append)
            if end == "</arg_key>":
                source.at += len(end)
                yield from skip_space(source)
            if (yield from expect(source, ("<arg_value>",))) is None:
                return True
            value = self.begin_value(name, "".join(parts).strip(), count)
            end = yield from text_until(source, _GLM_VALUE_END, value.add)
            if end is None:
                return True
            source.at += len(end)
            value.end()
            count += 1
            yield from skip_space(source)
            tag = yield from expect(source, ("<arg_key>", "</tool_call>"))
        if tag is not None or not source.exhausted():
            self.output.arguments("}")
        return True
