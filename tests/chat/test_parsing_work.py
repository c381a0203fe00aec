"""H16: readers do work that is linear in the text, counted in characters and not in seconds."""

import pytest
from parsing_cases.formats import FORMATS, TOOLS
from rocmforge.parsing import OutputParser, parser
from rocmforge.parsing.source import Source


class CountedSource(Source):
    """Counts the characters that are read, read again and copied."""

    __slots__ = ("_at", "_text", "work")

    def __init__(self):
        self.work = self._at = 0
        self._text = ""
        super().__init__()

    at = property(lambda self: self._at)
    text = property(lambda self: self._text)

    @at.setter
    def at(self, value):
        self.work += max(value - self._at, 0)
        self._at = value

    @text.setter
    def text(self, value):
        self.work += len(value)
        self._text = value


BARE = '{"name": "searchTool", "parameters": {'
# Texts that look like a call again and again, by what they repeat; and those that are one long part.
TEXTS = {
    "llama": [
        '{"name": {',
        '{"name": ["',
        '{"type": [',
        '{"type": "function", "name": {',
        '{"name": "searchTool", "x": [',
        '{"name": "searchTool", "parameters": "',
        "{ ",
        '{"',
        "; ",
        BARE + "}}; ",
        BARE,
    ],
    "hermes": [
        '<tool_call>{"a": [',
        '<tool_call>{"arguments": {',
        '<tool_call>{"name": "',
        "<tool_call>",
        '<tool_call>{"',
        '<tool_call>{"name": "a"}<tool_call>',
        '<tool_call>{"a": {"b": "',
    ],
    "mistral": ['[TOOL_CALLS][{"a": [', "[TOOL_CALLS]a", '[TOOL_CALLS]{"arguments": {', "[THINK]"],
    "qwen-xml": [
        "<tool_call><function=",
        "<function=searchTool>\n<parameter=query>\n",
        "<function=calculate_area>\n<parameter=dimensions>\n[1, ",
    ],
    "glm": ["<tool_call>", "<tool_call>searchTool<arg_key>", "<tool_call>calculate_area<arg_key>precision<arg_value>"],
    "gemma4": ["<|tool_call>call:", "<|tool_call>call:a{", '<|tool_call>call:a{b:<|"|>', "<|channel>thought"],
    "harmony": ["<|start|>", "to=", "<|channel|>commentary to=functions.a<|message|>", "<|message|>", "<|end|>"],
}
COMMON = ["\n", "1", "[1,", "\\", '"', "<think>\n \n"]
PAIRS = [(form, text) for form, texts in TEXTS.items() for text in texts + COMMON]
CUTS = (1, 1 << 30)


def work(form, text, cut, monkeypatch):
    """Reads a text; returns the characters that were read and copied for it."""
    monkeypatch.setattr(parser, "Source", CountedSource)
    reader = OutputParser(FORMATS[form], TOOLS)
    for start in range(0, len(text), cut):
        reader.feed(text[start : start + cut])
    reader.finish()
    return reader._source.work


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("form", "repeated"), PAIRS)
def test_work_grows_with_the_text(form, repeated, cut, monkeypatch):
    """H16: four times the text is about four times the work, however often it looks like the beginning of a call."""
    for begun in ("", BARE + '"query": ') if form == "llama" else ("",):
        texts = [begun + repeated * (size // len(repeated)) for size in (1500, 6000)]
        short, long = (work(form, text, cut, monkeypatch) for text in texts)
        assert long < 5.5 * short + 40_000, begun
        # A piece that is waited for is copied with each character.
        assert long < 1100 * len(texts[1]), begun


def test_an_answer_that_is_json_is_not_held_back():
    """H16: an object whose name can be none of a tool is given at once, not when it ends."""
    reader = OutputParser(FORMATS["llama"], TOOLS)
    assert reader.feed('{"name": ["a"') != []
