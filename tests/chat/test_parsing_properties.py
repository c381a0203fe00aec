"""Parsers with random texts: nothing is lost, nothing fails, and how a text is cut changes nothing."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing_cases.formats import FORMATS, TOOLS
from parsing_outputs import OUTPUTS
from rocmforge.parsing import OutputParser, gather

# Parts of calls and reasoning, whole and cut, of which texts are made that look like them.
PIECES = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "searchTool", "arguments": {', '"arguments": ', '{"name": "a"'],
    "qwen-xml": ["<tool_call>\n", "<function=searchTool>", "<parameter=query>\n", "\n</parameter>", "</function>\n"],
    "glm": ["<tool_call>", "searchTool", "<arg_key>", "query</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"],
    "llama": ["<|python_tag|>", '{"name": "searchTool"', ', "parameters": {', "};", '"type": "function"'],
    "mistral": ["[TOOL_CALLS]", "[", '{"name": "a", "arguments": {', "a[ARGS]{", "[CALL_ID]123456789", "[THINK]"],
    "gemma4": ["<|tool_call>", "call:a{", "key:", '<|"|>', "<tool_call|>", "<|channel>", "thought\n", "<channel|>"],
    "harmony": [
        "<|start|>assistant",
        "<|channel|>analysis",
        "<|channel|>final",
        " to=functions.a",
        "<|constrain|>json",
        "<|message|>",
        "<|end|>",
    ],
}
COMMON = ["<think>", "</think>", "{", "}", "}}", '"', '"a": 1', ", ", ":", "[", "]", "\\", "\\u00e9", " ", "\n", "true",
          "1.5e3", "é🙂", "text", "null", "\x01"]  # fmt: skip
PROMPTS = {
    "gemma4": ["<|turn>model\n<|channel>thought\n"],
    "harmony": ["<|start|>assistant", "<|start|>assistant<|channel|>analysis<|message|>"],
    "mistral": ["[INST]a[/INST][THINK]"],
}


@st.composite
def texts(draw, form):
    """Sequences of outputs, whole and damaged, of pieces of these and of random characters."""
    part = st.sampled_from(PIECES[form] * 2 + COMMON)
    cut = st.builds(lambda text, end: text[:end], part, st.integers(1, 8))
    output = st.sampled_from([text for of, text, *_ in OUTPUTS if of == form])
    place = st.integers(0, 400)
    damaged = st.builds(lambda text, at, end, new: text[:at] + new + text[at + end :], output, place, place, part)
    pieced = st.lists(st.one_of(part, part, cut, st.text(max_size=3)), max_size=12).map("".join)
    return "".join(draw(st.lists(st.one_of(output, damaged, pieced), max_size=4)))


def read(form, pieces, tools=TOOLS, prompt=""):
    parser = OutputParser(FORMATS[form], tools, prompt, new_id=lambda: "id")
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    return gather(events)


def cut_at(text, places):
    bounds = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@pytest.mark.parametrize("form", FORMATS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_cuts_change_nothing(form, data):
    text = data.draw(texts(form))
    prompt = data.draw(st.sampled_from(["", *PROMPTS.get(form, ["<think>\n"])]))
    whole = read(form, [text], prompt=prompt)
    assert read(form, text, prompt=prompt) == whole
    places = data.draw(st.lists(st.integers(0, 1 << 16), max_size=8))
    assert read(form, cut_at(text, places), prompt=prompt) == whole


@pytest.mark.parametrize("form", FORMATS)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<[{")))
@settings(max_examples=30, deadline=None)
def test_text_without_markers_is_the_answer(form, text):
    expected = text.lstrip(" \t\r\n") if form == "harmony" else text
    if form != "harmony" or not expected.startswith("to="):
        assert (read(form, text).content or "") == expected


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "harmony"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_without_calls_nothing_is_lost(form, data):
    """All but space and markers of thinking is in the answer or in the reasoning, in the order of the text."""
    text = data.draw(texts(form))
    message = read(form, [text])
    if message.tool_calls:
        return
    thinking = FORMATS[form].thinking
    marks = "" if thinking is None else f"{re.escape(thinking.open)}|{re.escape(thinking.close)}|"
    words = re.compile(marks + r"<\|tool_response>|thought|[ \t\r\n]")
    given = words.sub("", message.content or ""), words.sub("", message.reasoning_content or "")
    left = words.sub("", text)
    assert len(left) == sum(map(len, given))
    for part in given:
        rest = iter(left)
        assert all(character in rest for character in part)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CALLS = {
    "hermes": ('<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
    "llama": ('{"name": "searchTool", "parameters": ', "}"),
    "mistral": ("[TOOL_CALLS]f[ARGS]", ""),
    "harmony": ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|call|>"),
}


@pytest.mark.parametrize("form", CALLS)
@given(arguments=st.dictionaries(st.text(), JSON, max_size=4), indent=st.sampled_from([None, 2]), ascii=st.booleans())
@settings(max_examples=50, deadline=None)
def test_any_object_can_be_the_arguments(form, arguments, indent, ascii):  # noqa: A002 - json's name
    before, after = CALLS[form]
    written = json.dumps(arguments, indent=indent, ensure_ascii=ascii)
    message = read(form, before + written + after)
    assert [json.loads(call.arguments) for call in message.tool_calls] == [arguments]
    assert message.content is None


ESCAPES = st.sampled_from([r"\ud83d", r"\ude00", r"\ud83d\ude00", r"\u00e9", r"\n", "x", r"\uD8", r"\q", "é"])
HARD_JSON = st.one_of(
    st.lists(ESCAPES, max_size=4).map(lambda parts: f'"{"".join(parts)}"'),
    st.sampled_from(["1e999", "-1e400", "NaN", "-Infinity", "Infinity", "9" * 400, "-0.0", "1E5"]),
)


@pytest.mark.parametrize("form", CALLS)
@given(values=st.lists(HARD_JSON, min_size=1, max_size=3), cut=st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_arguments_are_json_that_every_client_can_hold(form, values, cut):
    """C1: halves of characters, numbers without end and `NaN` become what UTF-8 and a double can hold."""
    before, after = CALLS[form]
    written = "{" + ", ".join(f'"{number}": {value}' for number, value in enumerate(values)) + "}"
    text = before + written + after
    message = read(form, [text[start : start + cut] for start in range(0, len(text), cut)])
    (call,) = message.tool_calls
    json.dumps(json.loads(call.arguments), allow_nan=False, ensure_ascii=False).encode()
    assert message.content is None
