"""Reads harmony, the format of gpt-oss: messages with a header that names the channel and the recipient."""

import re

from rocmforge.parsing.output import Output
from rocmforge.parsing.readers.json_text import copy_json
from rocmforge.parsing.schema import Tools
from rocmforge.parsing.source import Source, Steps, expect, markers, peek, skip_space, text_until

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_IN_HEADER = ("<|channel|>", "<|constrain|>", "to=")
_OUTSIDE = (_START, _MESSAGE, *_ENDS, *_IN_HEADER)
_ANY_MARKER = markers(_START, _MESSAGE, *_ENDS, "<|channel|>", "<|constrain|>")
_HEADER_END = markers(_MESSAGE, _START, *_ENDS)
_BODY_ENDS = (*_ENDS, _START)
_BODY_END = markers(*_BODY_ENDS)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyReader:
    """Reads one sequence."""

    __slots__ = ("_output", "_source", "_tools")

    def __init__(self, source: Source, output: Output, tools: Tools, prompt_text: str) -> None:
        self._source = source
        self._output = output
        self._tools = tools
        # A prompt that ends within a message, or in its header after the role, is parsed as the model's own beginning.
        begun = prompt_text[prompt_text.rfind(_START) :] if _START in prompt_text else ""
        if _MESSAGE in begun or "<|channel|>" in begun:
            source.feed(begun)

    def run(self) -> Steps[None]:
        """Reads until the text has ended."""
        source = self._source
        while True:
            yield from skip_space(source)
            source.mark()
            mark = yield from expect(source, _OUTSIDE)
            if mark is not None:
                source.release()
            else:
                source.rewind()
                if source.exhausted():
                    return
                # A text without a header is not a message of the format; it counts as the answer.
                yield from text_until(source, _ANY_MARKER, self._output.content)
            if mark == _MESSAGE:
                yield from self._body("")
            elif mark is not None and mark not in _ENDS:
                yield from self._message(mark)

    def _message(self, mark: str) -> Steps[None]:
        """Reads the rest of a header, then the body."""
        header = [mark]
        while True:
            end = yield from text_until(self._source, _HEADER_END, header.append)
            if end is None:
                return
            if end != _START:
                break
            header = [end]
            self._source.at += len(end)
        self._source.at += len(end)
        if end == _MESSAGE:
            yield from self._body("".join(header))

    def _body(self, header: str) -> Steps[None]:
        found = _CHANNEL.search(header)
        channel = "" if found is None else found.group(1)
        found = _RECIPIENT.search(header)
        recipient = "" if found is None else found.group(1)
        name = recipient.removeprefix("functions.")
        output = self._output
        if self._tools and recipient and (name != recipient or name in self._tools):
            yield from self._call(name)
        if channel == "analysis":
            output.begin_reasoning()
            yield from text_until(self._source, _BODY_END, output.reasoning)
            return
        if output.said:
            output.content("\n")
        yield from text_until(self._source, _BODY_END, output.content)

    def _call(self, name: str) -> Steps[None]:
        """Reads the object that a body begins with; an empty body is an empty object."""
        source, output = self._source, self._output
        yield from skip_space(source)
        if (yield from peek(source)) == "{":
            output.start_call(name)
            yield from copy_json(source, output.arguments)
            return
        source.mark()
        empty = (yield from expect(source, _BODY_ENDS)) is not None or source.exhausted()
        source.rewind()
        if empty:
            output.start_call(name)
            output.arguments("{}")
