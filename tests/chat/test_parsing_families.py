"""The form of calls of any family, found in what its chat template writes: read back, and written by a grammar.

Jinja renders the templates; the parser and the grammars follow from what they make of small conversations.
"""
# ruff: noqa: RUF001 - markers of some models have a full-width line

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja_environment import renderer
from parsing_cases.families import FAMILIES, SHAPELESS
from parsing_cases.formats import FORMATS, STRING, TEMPLATES, read_in_pieces, template, tool
from rocmforge import LLM, SamplingParams, StructuredOutputsParams
from rocmforge.parsing import OutputParser, UnsupportedCallsError, call_grammar, find_format, parse, parser
from rocmforge.parsing.grammars import fitting_inputs
from rocmforge.parsing.grammars.inputs import InputGrammar
from rocmforge.parsing.needs import TemplateNeeds, find_needs
from rocmforge.parsing.shapes import LFM2, PHI_4
from rocmforge.server.chat.turns import fitted
from test_parsing_work import CountedSource

TOOLS = [
    tool("do_it", text=STRING, count={"type": "integer"}, flag={"type": "boolean"}, options={"type": "object"}),
    tool("other-tool", items={"type": "array"}),
]
USER = {"role": "user", "content": "Do it."}
ENDS = ("<|end|>", "<｜end▁of▁sentence｜>", "<|im_end|>", "[e~[", "<seed:eos>", "<|END_OF_TURN_TOKEN|>", "<|eos|>",
        "<｜hy_place▁holder▁no▁2｜>", "<|assistant_end|>")  # fmt: skip
MARKERS = {
    "deepseek-v3": "<｜tool▁calls▁begin｜>",
    "deepseek-v3.1": "<｜tool▁calls▁begin｜>",
    "deepseek-v3.2": "<｜DSML｜function_calls>",
    "kimi-k2": "<|tool_calls_section_begin|>",
    "minimax-m2": "<minimax:tool_call>",
    "seed-oss": "<seed:tool_call>",
    "command-a": "<|START_ACTION|>",
    "hunyuan-a13b": "<tool_calls>",
    "hunyuan-dense": "<tool_calls>",
    "phi-4-mini": "<|tool_call|>",
    "lfm2.5": "<|tool_call_start|>",
    "olmo-3": "<function_calls>",
    "apertus": "<|tools_prefix|>",
    "nested": "<calls>",
    "reversed": "<calls>",
    "functionary": "<function=",
    "bare-list": "[",
}


@pytest.fixture(scope="module")
def found():
    """The renderer, the needs and the format of each family."""
    renderers = {name: renderer(source) for name, source in FAMILIES.items()}
    return {
        name: (render, find_needs(render), find_format(FAMILIES[name], render)) for name, render in renderers.items()
    }


def test_forms_are_derived(found):
    """C22: each family's form is found without code of its own; ERNIE's is that of Hermes."""
    shapes = {name: form.shape.marker for name, (_, _, form) in found.items() if form.shape is not None}
    assert shapes == MARKERS
    assert found["ernie-4.5"][2].calls == "hermes"
    answers = {name: form.answer for name, (_, _, form) in found.items() if form.answer}
    assert answers == {
        "command-a": ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        "hunyuan-a13b": ("<answer>", "</answer>"),
        "ernie-4.5": ("<response>", "</response>"),
    }


def test_real_templates_keep_their_forms():
    """C22: what a real template writes leads to the form that is known by its text; R1's has no other name."""
    for path in TEMPLATES.glob("*.jinja.xz"):
        name = path.name.removesuffix(".jinja.xz")
        source = template(name)
        form, known = find_format(source, renderer(source)), find_format(source)
        if "DeepSeek-R1" in name:
            assert form.shape.marker == MARKERS["deepseek-v3"]
            assert form.shape.kind == "named"
        else:
            assert form == known, name


@pytest.mark.parametrize("name", SHAPELESS)
def test_calls_without_a_shape_have_no_form(name):
    """C22: rather none than a wrong one."""
    assert find_format(SHAPELESS[name], renderer(SHAPELESS[name])).calls is None


def test_needs_are_found(found):
    """C3, C4, C5: what real templates refuse or leave out."""
    expected = {
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": TemplateNeeds(descriptions=True, calls_apart=True),
        "meta-llama-Llama-3.1-8B-Instruct": TemplateNeeds(single_calls=True, calls_apart=True),
        "meta-llama-Llama-3.2-3B-Instruct": TemplateNeeds(single_calls=True, calls_apart=True),
        "mistralai-Mistral-Nemo-Instruct-2407": TemplateNeeds(
            ids="short", calls_apart=True, system="first", alternates=True, texts_only=True
        ),
        "openai-gpt-oss-20b": TemplateNeeds(descriptions=True, single_calls=True, system="first", texts_only=True),
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": TemplateNeeds(
            tools="nowhere", text_arguments=True, null_content=True, calls_apart=True, system="first", texts_only=True
        ),
        "Qwen-Qwen3-0.6B": TemplateNeeds(texts_only=True),
        "Qwen-Qwen3.5-4B": TemplateNeeds(system="first", question=True),
        "google-gemma-2-2b-it": TemplateNeeds(
            tools="nowhere", writes_calls=False, writes_results=False, system="none", alternates=True
        ),
        "google-gemma-3-4b-it": TemplateNeeds(
            tools="nowhere", writes_calls=False, writes_results=False, system="first", alternates=True
        ),
        "microsoft-Phi-3.5-mini-instruct": TemplateNeeds(
            tools="nowhere", writes_calls=False, writes_results=False, texts_only=True
        ),
        "zai-org-GLM-4.5": TemplateNeeds(),
        "google-gemma-4-E2B-it": TemplateNeeds(images_in_results=False),
    }
    assert {name: find_needs(renderer(template(name))) for name in expected} == expected
    assert {name for name, (_, needs, _) in found.items() if needs.ids == "named"} == {"kimi-k2"}
    assert {name for name, (_, needs, _) in found.items() if needs.text_arguments} == {"deepseek-v3", "deepseek-v3.1"}


@pytest.mark.parametrize("name", ["meta-llama-Llama-3.1-8B-Instruct", "openai-gpt-oss-20b"])
def test_two_calls_become_two_messages(name):
    """C5: a template that takes, or writes, one call a message gets each with its result behind it."""
    render = renderer(template(name))
    calls = [
        {"id": id_, "type": "function", "function": {"name": "do_it", "arguments": {"text": f"first{id_}"}}}
        for id_ in ("a", "b")
    ]
    results = [{"role": "tool", "tool_call_id": id_, "content": f"result-{id_}"} for id_ in ("b", "a")]
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    fitting = fitted(messages, find_needs(render))
    assert [len(each.get("tool_calls", ())) for each in fitting] == [0, 1, 0, 1, 0]
    text = render(fitting, TOOLS, True)
    places = [text.index(part) for part in ("firsta", "result-a", "firstb", "result-b")]
    assert places == sorted(places)


@pytest.mark.parametrize("repeated", ["", "do_it", "do_it(", "text=", '{"', '{"name": {', "["])
@pytest.mark.parametrize("name", FAMILIES)
def test_work_grows_with_the_text(found, name, repeated, monkeypatch):
    """H16: reading a derived form takes work that is linear in the text."""
    form = found[name][2]
    mark = (form.shape or PHI_4).open + (form.shape or PHI_4).before + repeated
    monkeypatch.setattr(parser, "Source", CountedSource)

    def work(size):
        reader = OutputParser(form, TOOLS)
        for character in mark * (size // len(mark)):
            reader.feed(character)
        reader.finish()
        return reader._source.work

    assert work(4000) < 5.5 * work(1000) + 20_000


def test_families_whose_templates_write_no_calls():
    """C22: LFM2 and Phi-4-mini are known by the marks around their tools."""
    assert find_format("List of tools: <|tool_list_start|>[").shape == LFM2
    assert find_format("'<|tool|>' + message['tools'] + '<|/tool|>'").shape == PHI_4
    for shape, text in ((LFM2, "<|tool_call_start|>[do_it(text='it', flag=True)]<|tool_call_end|>"),
                        (PHI_4, '<|tool_call|>[{"name": "do_it", "arguments": {"text": "it", "flag": true}}]<|/tool_call|>')):  # fmt: skip # noqa: E501
        form = find_format("<|tool_list_start|>" if shape is LFM2 else "<|tool|><|/tool|>")
        (call,) = parse(form, text, TOOLS).tool_calls
        assert (call.name, json.loads(call.arguments)) == ("do_it", {"text": "it", "flag": True})


SAID = st.lists(st.sampled_from(["Well", "<b>", "{x}", "f(1, 2)", "5"])).map(" ".join)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r<'\\")).filter(
    lambda text: text == text.strip()
)
KEY = st.from_regex(r"\A[a-z_]{1,5}\Z")
JSON = st.recursive(
    st.booleans() | st.integers(-(10**12), 10**12) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=5,
)
FIRST = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "count": st.integers(-(10**12), 10**12),
        "flag": st.booleans(),
        "options": st.dictionaries(KEY, JSON, max_size=3),
    },
)
OTHER = st.fixed_dictionaries({}, optional={"items": st.lists(JSON, max_size=3)})
CALL = st.tuples(st.just("do_it"), FIRST) | st.tuples(st.just("other-tool"), OTHER)


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_message_with_calls_is_read_back(found, name, data):
    """C22: what the template writes for calls is read back as these calls, whole and in pieces."""
    render, needs, form = found[name]
    calls = data.draw(st.lists(CALL, min_size=1, max_size=3))
    if name == "lfm2.5":
        # Its template writes lists as Python does, and texts without escapes.
        calls = [each for each in calls if each[0] == "do_it"] or [("do_it", {"text": "a"})]
    content, reasoning = data.draw(SAID), data.draw(SAID)
    made = [
        {"id": f"call_{n}", "type": "function", "function": {"name": called, "arguments": arguments}}
        for n, (called, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning, "tool_calls": made}
    prompt, whole = (render(fitted(each, needs), TOOLS, len(each) == 1) for each in ([USER], [USER, message]))
    assert whole.startswith(prompt)
    output = whole[len(prompt) :].rstrip("\n")
    end = next(end for end in ENDS if output.endswith(end))
    output = output.removesuffix(end)
    cut = data.draw(st.integers(1, 9))
    for size in (len(output), cut):
        read = read_in_pieces(form, output, size, TOOLS, prompt)
        assert [(one.name, json.loads(one.arguments)) for one in read.tool_calls] == calls
        assert (read.content or "", read.reasoning_content or "") == (content, reasoning)
        if needs.ids == "named":
            assert [one.id for one in read.tool_calls] == [f"functions.{each[0]}:{n}" for n, each in enumerate(calls)]


PARTS = [
    "do_it",
    "other-tool",
    "(",
    "text=",
    "'",
    '"',
    "'a'",
    ")",
    "]",
    "[",
    "{",
    "}",
    '"text": ',
    "1",
    ",",
    " ",
    "\n",
    "<",
    ">",
]


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_cuts_change_nothing(found, name, data):
    """C22: damaged calls are read the same way in whatever pieces they come."""
    _, _, form = found[name]
    shape = form.shape or PHI_4
    marks = [shape.open + shape.before, shape.middle, shape.after, shape.close, shape.key_open, shape.key_close,
             shape.value_close, shape.head, *form.markers()]  # fmt: skip
    parts = st.sampled_from([mark for mark in marks if mark] + PARTS)
    text = "".join(data.draw(st.lists(parts, max_size=25)))
    cut = data.draw(st.integers(2, 9))

    def read(size):
        return read_in_pieces(form, text, size, TOOLS, new_id=lambda: "id")

    assert read(1) == read(cut) == read(max(1, len(text)))


@pytest.fixture(scope="module")
def llm(long_model):
    with LLM(long_model, max_model_len=1024, num_threads=1, seed=1) as llm:
        yield llm


SCHEMA = {
    "type": "object",
    "properties": {"flag": {"type": "boolean"}, "unit": {"enum": ["C", "F"]}, "count": {"enum": [1, 2]}},
    "required": ["flag", "unit"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_forced_call_is_one_of_the_form(found, llm, name):
    """C22: by the grammar of a derived form, a model with random weights writes a call that is read as one."""
    _, _, form = found[name]
    function = {"type": "function", "function": {"name": "do_it", "parameters": SCHEMA}}
    made = call_grammar(form, FAMILIES[name], [function], json.dumps, strict=["do_it"], parallel=False)
    form_of_text = StructuredOutputsParams(grammar=made.grammar)
    params = SamplingParams(max_tokens=700, temperature=1.0, n=2, structured_outputs=form_of_text)
    for one in llm.generate([[5]], params, progress=False)[0].outputs:
        assert one.finish_reason == "stop"
        message = parse(form, one.text, [function])
        (call,) = message.tool_calls
        arguments = json.loads(call.arguments)
        assert (call.name, message.content) == ("do_it", None)
        assert arguments["unit"] in ("C", "F")
        assert isinstance(arguments["flag"], bool)
        assert arguments.get("count") in (None, 1, 2)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_input_of_a_custom_tool_fits_its_grammar(found, llm, name):
    """Where the format has a way to enforce it: between tags, an input must not read on across its end."""
    _, _, form = found[name]
    function = tool("edit", input=STRING)
    inputs = fitting_inputs(form, {"edit": InputGrammar("regex", "[+][01]{2}")})
    made = call_grammar(form, FAMILIES[name], [function], json.dumps, parallel=False, inputs=inputs)
    asked = StructuredOutputsParams(grammar=made.grammar)
    params = SamplingParams(max_tokens=300, temperature=1.0, n=2, structured_outputs=asked)
    for one in llm.generate([[5]], params, progress=False)[0].outputs:
        assert one.finish_reason == "stop"
        (call,) = parse(form, one.text, [function]).tool_calls
        assert re.fullmatch("[+][01]{2}", json.loads(call.arguments)["input"]), one.text


# Forms whose arguments are written in a way of their own.
REAL = {
    "llama": "meta-llama-Llama-3.1-8B-Instruct",
    "mistral": "mistralai-Mistral-Nemo-Instruct-2407",
    "gemma4": "google-gemma-4-E2B-it",
}


@pytest.mark.parametrize(
    "schema", [{"type": "string"}, {"type": ["array", "object"]}, {"type": "integer", "minimum": 1}]
)
@pytest.mark.parametrize("name", ["phi-4-mini", "deepseek-v3.1", "ernie-4.5", *REAL])
def test_a_tool_whose_parameters_are_no_object_is_called_with_one(found, llm, name, schema):
    """C13: arguments are an object in every API, so a forced call has one, and is no text of the answer."""
    form, source = (FORMATS[name], template(REAL[name])) if name in REAL else (found[name][2], FAMILIES[name])
    empty = schema | {"properties": {}, "additionalProperties": False}
    function = {"type": "function", "function": {"name": "do_it", "parameters": empty}}
    made = call_grammar(form, source, [function], json.dumps, parallel=False)
    params = SamplingParams(max_tokens=500, structured_outputs=StructuredOutputsParams(grammar=made.grammar))
    text = llm.generate([[5]], params, progress=False)[0].outputs[0].text
    message = parse(form, text, [function])
    assert (message.content, [json.loads(call.arguments) for call in message.tool_calls]) == (None, [{}])
    if "object" not in schema["type"]:
        with pytest.raises(UnsupportedCallsError, match="expected the type object"):
            call_grammar(form, source, [function], json.dumps, strict=["do_it"])
