"""Grammars of inputs in calls: a text fits one as the call writes it exactly if the text itself fits the grammar."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing_cases.formats import FORMATS, tool
from rocmforge import LLM, SamplingParams, StructuredOutputsParams
from rocmforge.parsing import call_grammar, parse
from rocmforge.parsing.grammars import fitting_inputs
from rocmforge.parsing.grammars.inputs import InputGrammar, _escaped_regex
from rocmforge.parsing.grammars.lark import UnsupportedCallsError
from rocmforge.parsing.grammars.xml_arguments import TAGS

# A format of patches, as agents give one to their tool.
PATCH = r"""
// Lines begin with a sign.
start: "*** Begin Patch" LF change+ "*** End Patch" LF?
change: ("+" | "-" | " ") /(.*)/ LF -> line
%import common.LF
"""
PATTERNS = [
    r"[^\n]+",
    r".*",
    r"a\"b\\c",
    r"[\"\\]{1,3}",
    r"(x|\n\t)+",
    r"\s\S",
    r"[^a-c\"]*",
    r"[/\]a]+",
    r"\d+\.\w",
    "a/b",
]


def python_form(pattern):
    """The pattern in Python's syntax: Rust's intersection of classes as a lookahead."""
    return re.sub(r"\[(\[(?:[^\]\\]|\\.)*\])&&(\[\^[^\]]*\])\]", r"(?=\2)\1", pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_escaped_patterns(pattern, data):
    """C19: the escaped pattern matches the JSON form of a text exactly where the pattern matches the text."""
    escaped = re.compile(python_form(_escaped_regex(pattern, "")))
    plain = re.compile(pattern)
    alphabet = 'abcx/]1."\\\n\t é😀'
    text = data.draw(st.one_of(st.from_regex(plain, fullmatch=True), st.text(alphabet, max_size=6)))
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    if "\\u" not in written:
        assert bool(escaped.fullmatch(written)) == bool(plain.fullmatch(text)), (text, escaped.pattern)


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [("regex", r"a\b"), ("regex", "(?=a)b"), ("lark", "start: /a/i"), ("lark", "%ignore /x/"), ("lark", '"\\x41"'),
     ("lark", "%import common.FLOAT")],
)  # fmt: skip
def test_what_cannot_be_told(syntax, definition):
    with pytest.raises(UnsupportedCallsError, match="the grammar of an input"):
        InputGrammar(syntax, definition).in_json()


def test_a_patch_within_json(model):
    """C19: what a model with random weights writes is a JSON string, and its text is a patch."""
    grammar = f'start: "\\"" text "\\""\ntext: %lark {{\n{InputGrammar("lark", PATCH).in_json()}\n}}\n'
    params = SamplingParams(
        max_tokens=200, seed=1, n=6, temperature=1.0, structured_outputs=StructuredOutputsParams(grammar=grammar)
    )
    with LLM(model, max_model_len=256, num_threads=1) as llm:
        (output,) = llm.generate("a", params)
    ended = [one.text for one in output.outputs if one.finish_reason == "stop"]
    for text in ended:
        assert re.fullmatch(r"\*\*\* Begin Patch\n([+\- ].*\n)+\*\*\* End Patch\n?", json.loads(text)), text
    for one in output.outputs:
        assert one.text.startswith('"*** Begin Patch\\n'[: len(one.text)])


# The end of an input between the tags of Qwen's coders.
END = "\n</parameter>\n"


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [("regex", r"[\s\S]+"), ("regex", r"a\W*"), ("lark", "start: /(?s:.)+/"), ("lark", "%import common.NEWLINE"),
     ("lark", 'start: NL\nNL: "\\n"+'), ("lark", 'start: NL\nNL: "a"\n  | "\\n" "\\n"'), ("regex", r"\x0a+")],
)  # fmt: skip
def test_what_would_read_on_across_the_end(syntax, definition):
    with pytest.raises(UnsupportedCallsError, match="the grammar of an input"):
        InputGrammar(syntax, definition).as_text(END)


@pytest.mark.parametrize(
    ("syntax", "definition", "expected"),
    [("regex", "a/[/b]+", r"start: /a\/[\/b]+/"), ("lark", PATCH, None),
     ("lark", "NL: /\\n/ // one\nstart: NL", "NL: /\\n/ \nstart: NL")],
)  # fmt: skip
def test_what_ends(syntax, definition, expected):
    made = InputGrammar(syntax, definition).as_text(END)
    assert expected is None or made.strip() == expected
    assert InputGrammar("regex", r"[\s\S]+").as_text("") == "start: /[\\s\\S]+/\n"


@pytest.fixture(scope="module")
def llm(long_model):
    with LLM(long_model, max_model_len=1024, num_threads=1, seed=1) as llm:
        yield llm


SHORT = InputGrammar("lark", 'start: "<a>" LF ("+" /[01]{1,3}/ LF)+ "</a>" LF?\n%import common.LF')
EDIT, ANY = tool("edit", input={"type": "string"}), tool("look")
del ANY["function"]["parameters"]["properties"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_input_of_a_call_fits_its_grammar(llm, name):
    """In every call format, a model with random weights writes an input that the parser reads and that fits."""
    form = FORMATS[name]
    inputs = fitting_inputs(form, {"edit": SHORT})
    grammar = call_grammar(form, "[ARGS]", [EDIT], json.dumps, parallel=False, inputs=inputs).grammar
    asked = StructuredOutputsParams(grammar=grammar)
    params = SamplingParams(max_tokens=400, temperature=1.0, seed=1, n=3, structured_outputs=asked)
    for one in llm.generate([[5]], params, progress=False)[0].outputs:
        assert one.finish_reason == "stop"
        (call,) = parse(form, one.text, [EDIT]).tool_calls
        assert re.fullmatch(r"<a>\n(\+[01]{1,3}\n)+</a>\n?", json.loads(call.arguments)["input"]), one.text


@pytest.mark.parametrize("name", ["qwen-xml", "glm"])
def test_a_tool_without_named_parameters_takes_any(llm, name):
    form = FORMATS[name]
    grammar = call_grammar(form, "", [ANY], json.dumps, parallel=False).grammar
    asked = StructuredOutputsParams(grammar=grammar)
    params = SamplingParams(max_tokens=400, temperature=1.0, seed=1, n=16, structured_outputs=asked)
    outputs = llm.generate([[5]], params, progress=False)[0].outputs
    calls = [parse(form, one.text, [ANY]).tool_calls[0] for one in outputs if one.finish_reason == "stop"]
    assert {call.name for call in calls} == {"look"}
    # Random weights seldom end an argument that they have begun.
    assert any(TAGS[name].before.partition("{")[0] in one.text for one in outputs)
