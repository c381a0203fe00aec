"""Splitting what models write into reasoning, answer and tool calls, at once and while it is written."""

import json

import pytest
from parsing_cases.formats import FORMATS, TOOLS, template
from parsing_outputs import HARMONY_CALL, OUTPUTS
from rocmforge.parsing import (
    Content,
    OutputParser,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
    find_format,
    gather,
    parse,
)


@pytest.mark.parametrize(("form", "text", "reasoning", "content", "calls"), OUTPUTS)
def test_output_is_split(form, text, reasoning, content, calls):
    message = parse(FORMATS[form], text, TOOLS)
    assert message.reasoning_content == reasoning
    assert message.content == (text if content is ... else content)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, text, *_ in OUTPUTS])
def test_without_tools_there_are_no_calls(form, text):
    message = parse(FORMATS[form], text)
    assert message.tool_calls == []


def streamed(form, pieces, tools=TOOLS, prompt=""):
    """The events of each piece, and of the end."""
    parser = OutputParser(FORMATS[form], tools, prompt, new_id=lambda: "id")
    return [*(parser.feed(piece) for piece in pieces), parser.finish()]


def test_text_comes_at_once():
    pieces = ["Hel", "lo <", "b>", " <th", "en"]
    assert [gather(events).content for events in streamed("hermes", pieces)] == [
        "Hel",
        "lo",
        " <b>",
        None,
        " <then",
        None,
    ]


def test_arguments_come_as_they_are_written():
    pieces = ['<tool_call>{"name": "searchTool", "argu', 'ments": {"que', 'ry": "a', " b", '"}', "}</tool_call>"]
    assert streamed("hermes", pieces) == [
        [],
        [ToolCallStart(0, "id", "searchTool"), ToolCallArguments(0, '{"que')],
        [ToolCallArguments(0, 'ry": "a')],
        [ToolCallArguments(0, " b")],
        [ToolCallArguments(0, '"}')],
        [],
        [],
    ]


def test_strings_between_tags_come_as_they_are_written():
    pieces = [
        "<tool_call>\n<function=searchTool>",
        "\n<parameter=query>\n",
        'a "',
        "b",
        "\n</para",
        "meter>\n</function>",
    ]
    assert streamed("qwen-xml", pieces) == [
        [ToolCallStart(0, "id", "searchTool"), ToolCallArguments(0, "{")],
        [ToolCallArguments(0, '"query": ')],
        [ToolCallArguments(0, '"a \\"')],
        [ToolCallArguments(0, "b")],
        [],
        [ToolCallArguments(0, '"}')],
        [],
    ]


def test_the_prompt_tells_whether_the_model_thinks():
    assert streamed("qwen-xml", ["a", "</think>b"], prompt="<|im_start|>assistant\n<think>\n") == [
        [Reasoning("a")],
        [Content("b")],
        [],
    ]
    closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    asked = "<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n"
    for prompt in (closed, asked, ""):
        assert streamed("qwen-xml", ["a"], prompt=prompt) == [[Content("a")], []]
    assert streamed("gemma4", ["a<channel|>b"], prompt="<|turn>model\n<|channel>thought\n") == [
        [Reasoning("a"), Content("b")],
        [],
    ]
    assert streamed("harmony", ["a"], prompt="<|start|>assistant<|channel|>analysis<|message|>") == [
        [Reasoning("a")],
        [],
    ]
    assert streamed("harmony", ["a"], prompt="<|start|>assistant<|channel|>final<|message|>b") == [[Content("a")], []]


def test_a_call_that_is_cut_off_ends_with_what_there_was():
    for form, text, arguments in [
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": "y', '{"x": "y'),
        ("llama", '{"name": "searchTool", "parameters": {"query": ["a', '{"query": ["a'),
        ("mistral", '[TOOL_CALLS]a{"x": "y', '{"x": "y'),
        ("gemma4", '<|tool_call>call:a{x:<|"|>y', '{"x":"y'),
        ("glm", "<tool_call>searchTool<arg_key>query</arg_key><arg_value>y</arg_val", '{"query": "y</arg_val'),
        ("harmony", f'{HARMONY_CALL}{{"x": "y', '{"x": "y'),
    ]:
        (call,) = parse(FORMATS[form], text, TOOLS).tool_calls
        assert call.arguments == arguments, form


def test_what_is_no_call_is_given():
    for form, text in [
        ("hermes", '<tool_call>{"name": "a", "argum'),
        ("hermes", "Write <tool_call>, then JSON, then </tool_call>."),
        ("hermes", '<tool_call>\n{"name": "do_thing", "arguments": "hello"}\n</tool_call>'),
        ("qwen-xml", "<tool_call>\n<function"),
        ("qwen-xml", "Not <function=unknown> at all"),
        ("glm", "<tool_call>get_current_weather"),
        ("gemma4", "<|tool_call>call London"),
        ("llama", '{"title": "An answer", "name": "in JSON"}'),
        ("mistral", "[TOOL_CALLS]toolname_no_args"),
    ]:
        assert parse(FORMATS[form], text, TOOLS).content == text


def test_a_body_that_is_no_object_is_no_call():
    for body in ("foo", "<html>", "[1]"):
        message = parse(FORMATS["harmony"], f"{HARMONY_CALL}{body}<|call|>", TOOLS)
        assert (message.content, message.tool_calls) == (body, [])


def test_what_follows_broken_arguments_is_given():
    message = parse(FORMATS["llama"], '{"name": "searchTool", "parameters": {invalid json}', TOOLS)
    assert message.tool_calls[0].arguments == "{"
    assert message.content == "invalid json}"


def test_thinking_tags_within_an_answer_are_text():
    text = "The tags are <think> and </think>."
    assert parse(FORMATS["hermes"], text, TOOLS).content == text


def test_ids():
    calls = parse(FORMATS["hermes"], '<tool_call>{"name": "a"}{"name": "b"}</tool_call>', TOOLS).tool_calls
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") and len(call.id) == 29 and call.id[5:].isalnum() for call in calls)
    (call,) = parse(FORMATS["mistral"], '[TOOL_CALLS][{"name": "a", "arguments": {}}]', TOOLS).tool_calls
    assert len(call.id) == 9
    assert call.id.isalnum()
    (call,) = parse(FORMATS["mistral"], "[TOOL_CALLS]a[CALL_ID]abc123XYZ[ARGS]{}", TOOLS).tool_calls
    assert call.id == "abc123XYZ"


def test_a_template_without_a_form_passes_everything():
    text = ' <think>x</think><tool_call>{"name": "a", "arguments": {}}</tool_call>[TOOL_CALLS]\n'
    for source in (None, "", template("google-gemma-2-2b-it"), template("microsoft-Phi-3.5-mini-instruct")):
        parser = OutputParser(find_format(source), TOOLS)
        assert parser.feed(text) == [Content(text)]
        assert parser.feed("") == parser.finish() == []


def both(form, text, **options):
    """The message of a text, which is the same one in pieces of one character."""
    message = parse(FORMATS[form], text, TOOLS, new_id=lambda: "id", **options)
    parser = OutputParser(FORMATS[form], TOOLS, options.get("prompt_text", ""), new_id=lambda: "id")
    assert gather([event for piece in text for event in parser.feed(piece)] + parser.finish()) == message
    return message


@pytest.mark.parametrize("prompt", ["", "<|im_start|>assistant\n<think>\n"])
def test_a_call_within_reasoning_leaves_no_marker_in_the_answer(prompt):
    """C7: what follows the call belongs to the reasoning up to its end."""
    call = '<tool_call>\n{"name": "searchTool", "arguments": {"query": "a"}}\n</tool_call>'
    text = f"I will call. {call}\nLet me wait.\n</think>\n\nDone."
    message = both("hermes", text if prompt else f"<think>\n{text}", prompt_text=prompt)
    assert message.reasoning_content == "I will call.\nLet me wait."
    assert message.content == "Done."
    assert [each.name for each in message.tool_calls] == ["searchTool"]


def test_a_block_that_is_begun_twice_is_one():
    """C7: a model writes `<think>` again although the prompt has begun the block."""
    message = both("hermes", "\n<think>\nHm.</think>Yes.", prompt_text="<|im_start|>assistant\n<think>\n")
    assert (message.reasoning_content, message.content) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("llama", '[{"name": "searchTool", "parameters": {"query": "a"}}, {"name": "searchTool", "parameters": {}}]'),
        ("llama", '<|python_tag|>[{"name": "searchTool", "parameters": {"query": "a"}},{"name": "searchTool", '
         '"parameters": {}}]'),
        ("hermes", '<tool_call>\n[{"name": "searchTool", "arguments": {"query": "a"}}, {"name": "searchTool", '
         '"arguments": {}}]\n</tool_call>'),
        ("hermes", '<tool_call>\n```json\n{"name": "searchTool", "arguments": {"query": "a"}}\n```\n</tool_call>'
         '<tool_call>{"name": "searchTool"}</tool_call>'),
    ],
)  # fmt: skip
def test_lists_and_fences_of_calls_leave_nothing_behind(form, text):
    """C7: calls in a list or in a fence of code are calls, and nothing of these stays in the answer."""
    message = both(form, f"{text}\n")
    assert [json.loads(call.arguments) for call in message.tool_calls] == [{"query": "a"}, {}]
    assert message.content is None
    assert both(form, f"{text}\nWell.").content == "Well."


@pytest.mark.parametrize(
    "value",
    ["a\n</function>\n</tool_call>\nb", "<x>\n<parameter=other>\ny", "\n<parameter=", "a</function>b\n</function>"],
)
def test_values_may_have_tags_of_the_form_within_them(value):
    """C13: a text of Qwen's coders that speaks of the form's own tags is kept whole."""
    text = f"<tool_call>\n<function=searchTool>\n<parameter=query>\n{value}\n</parameter>\n</function>\n</tool_call>"
    (call,) = both("qwen-xml", text).tool_calls
    assert json.loads(call.arguments) == {"query": value}
