"""Templates that write calls or reasoning in an unusual way: each is read back, and none is taken for another form."""

import json

import pytest
from jinja_environment import renderer
from parsing_cases.families import JSON_CALL, TEXT, chat, each, tags
from parsing_cases.formats import STRING, read_in_pieces, tool
from rocmforge.parsing import find_format, parse
from rocmforge.parsing.needs import find_needs
from rocmforge.server.chat.turns import fitted
from test_parsing_families import USER

TOOLS = [
    tool("do_it", text=STRING, items={"type": "array"}, options={"type": "object"}, flag={"type": "boolean"}),
    tool("other", text=STRING),
]
MARKED = "{% if '<' in v or '\\n' in v %}<![CDATA[{{ v }}]]>{% else %}{{ v }}{% endif %}"
CALLS_BEGIN = "{{ '\\n' if m is defined and m.tool_calls }}<|assistant|>\n"
QUIRKS = {
    # The ids of calls, which name them, are the template's own.
    "own-ids": chat(
        "<|calls|>"
        + each("<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|args|>{{ f.arguments | tojson }}<|/call|>")
        + "<|/calls|>"
    ),
    "closed-where-several": chat(
        "<|calls|>"
        + each("<|call|>{{ f.name }}<|args|>{{ f.arguments | tojson }}<|/call|>", "\n")
        + "{% if m.tool_calls | length > 1 %}<|/calls|>{% endif %}"
    ),
    # Values that are no texts are written as Python writes them.
    "python-values": chat(each("<call={{ f.name }}>\n" + tags("<arg={{ k }}>{{ v }}</arg>\n") + "</call>")),
    "cdata": chat(
        each(
            '<call name="{{ f.name }}">'
            + tags('<arg name="{{ k }}">{% if v is string %}' + MARKED + "{% else %}{{ v | tojson }}{% endif %}</arg>")
            + "</call>"
        )
    ),
    # The turn begins with other white space where it has calls.
    "header": chat("<|calls|>" + each(JSON_CALL, "; "), prompt=CALLS_BEGIN),
    "bare-header": chat(each(JSON_CALL, ","), prompt=CALLS_BEGIN),
    "named-think": chat("<|calls|>" + each(JSON_CALL, ", "), think=("<deep:think>", "</deep:think>")),
}
CALLS = [
    ("do_it", {"text": 'it\'s "so" <b>\n{é}', "items": [1, "a'", {"k": [True, None]}], "options": {"a": {}}}),
    ("other", {}),
    ("do_it", {"flag": False, "options": {}}),
]


def turn(render, calls, **fields):
    """The prompt, and the turn that a template writes for a message with calls."""
    made = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": "", "tool_calls": made, **fields}
    needs = find_needs(render)
    prompt, whole = (render(fitted(each, needs), TOOLS, len(each) == 1) for each in ([USER], [USER, message]))
    return prompt, whole.removeprefix(prompt).rpartition("<|assistant|>\n")[2].removesuffix("<|end|>")


@pytest.mark.parametrize("name", QUIRKS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_quirk_is_read_back(name, count):
    """C22: whole and character by character, with the reasoning before it."""
    render = renderer(QUIRKS[name])
    form = find_format(QUIRKS[name], render)
    fields = {"reasoning_content": "Well.\nSo"} if name == "named-think" else {}
    prompt, output = turn(render, CALLS[:count], **fields)
    for size in (len(output), 1):
        read = read_in_pieces(form, output, size, TOOLS, prompt)
        assert [(one.name, json.loads(one.arguments)) for one in read.tool_calls] == CALLS[:count]
        assert (read.content, read.reasoning_content) == (None, fields.get("reasoning_content"))


@pytest.mark.parametrize("value", ["if (a[b[0]]>1) run();", "a]]>", "<b>]]>\n</b>", "no end"])
def test_the_mark_of_a_section_within_it(value):
    """C22: templates write sections without escapes; one ends where the value ends."""
    form = find_format(QUIRKS["cdata"], renderer(QUIRKS["cdata"]))
    output = f'<call name="other"><arg name="text"><![CDATA[{value}]]></arg></call>'
    for size in (len(output), 1):
        (call,) = read_in_pieces(form, output, size, TOOLS).tool_calls
        assert json.loads(call.arguments) == {"text": value}


UNKNOWN = {
    # A name of a key is in the text that ends its value.
    "keys-as-tags": chat("<calls>" + each("<call {{ f.name }}>" + tags("<{{ k }}>" + TEXT + "</{{ k }}>") + "</call>")),
    # The calls are counted.
    "numbers": chat(
        "<calls>"
        + each('<call="{{ f.name }}" index="{{ loop.index }}">' + tags("<arg={{ k }}>" + TEXT + "</arg>") + "</call>")
    ),
    # The marker of another form is within it.
    "other-marker": chat("[]<tool_call>" + each("{{ f.name }}" + tags("<{{ k }}>" + TEXT + "</{{ k }}>")) + "[]"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_shape_that_does_not_read_its_own_calls_is_none(name):
    """C22: a form that was derived or found by its marker reads what the template writes, or there is none."""
    assert find_format(UNKNOWN[name], renderer(UNKNOWN[name])).calls is None


def test_families_without_calls_in_their_templates():
    """C22: LFM2.5 and Granite 3 are known by the texts around their tools."""
    granite = find_format("respond only with <|tool_call|> followed by a JSON list of tools used")
    lfm = find_format("{{ 'List of tools: [' }}")
    written = {
        '<|tool_call|>[{"name": "other", "arguments": {"text": "a"}}]': granite,
        '<|tool_call_start|>[other(text="a")]<|tool_call_end|>': lfm,
    }
    for text, form in written.items():
        (call,) = parse(form, text, TOOLS).tool_calls
        assert (call.name, json.loads(call.arguments)) == ("other", {"text": "a"})
        assert form.shape.written([("other", {"text": "a"})]) == text


PYTHON_VALUES = {
    r"'a\u00e9b \x41 \U0001F600 \ud83d\ude00 \ud83d C:\users'": "aéb A 😀 😀 \ufffd C:\\users",
    r'"a\u00e9b \x41 it\'s \/ \q"': "aéb A it's / \\q",
    "('a', 'b')": ["a", "b"],
    "[(1, 2), (), ('c',)]": [[1, 2], [], ["c"]],
    "{'k': (True, None)}": {"k": [True, None]},
    "-1_000_000": -1000000,
    "[1_0, 2]": [10, 2],
}


@pytest.mark.parametrize("written", PYTHON_VALUES)
def test_values_of_python_become_those_of_json(written):
    """C22: escapes, tuples and digits in groups, which JSON lacks, do not end a call."""
    form = find_format("<|tool_list_start|>")
    output = f"<|tool_call_start|>[do_it(text={written}, flag=True)]<|tool_call_end|>"
    for size in (1, 3, len(output)):
        read = read_in_pieces(form, output, size, TOOLS)
        assert [json.loads(one.arguments) for one in read.tool_calls] == [
            {"text": PYTHON_VALUES[written], "flag": True}
        ]
        assert read.content is None


PLAIN_LISTS = (
    'Tools:\n[{"name": "do_it", "description": "d"}, {"name": "other", "description": "d"}]',
    '```json\n[{"name": "other"}]\n```',
)


@pytest.mark.parametrize("written", PLAIN_LISTS)
def test_a_list_of_tools_is_no_list_of_calls(written):
    """C22: where calls have no marker, an object with other keys, or without arguments, is an answer."""
    source = chat("[" + each(JSON_CALL, ", ") + "]")
    form = find_format(source, renderer(source))
    assert form.shape.bare
    for size in (1, 7, len(written)):
        read = read_in_pieces(form, written, size, TOOLS)
        assert (read.content, read.tool_calls) == (written, [])


@pytest.mark.parametrize("close", ["</think>", "<think>\n\n</think>\n"])
def test_space_after_reasoning_that_the_prompt_closes_is_none_of_the_answer(close):
    """C11: a template may close the reasoning and leave the line break to the model."""
    form = find_format("<think></think>")
    assert parse(form, "\nWell.\n", prompt_text=f"<|assistant|>{close}").content == "Well.\n"
    assert parse(form, "\nWell.\n", prompt_text="<|assistant|>").content == "\nWell.\n"


def test_quotation_marks_within_a_text_of_python():
    """C22: LFM2's template does not escape them; one ends an argument only where another one or the end follows."""
    text = "x = {'a': [1], 'b': ['c', 'd']}\nprint('it''s', x) # 'so', 5"
    form = find_format("<|tool_list_start|>")
    output = f"<|tool_call_start|>[do_it(text='{text}', items=['a'd', 'b']), other(text='{text}')]<|tool_call_end|>"
    for size in (1, 7, len(output)):
        read = read_in_pieces(form, output, size, TOOLS)
        arguments = [json.loads(one.arguments) for one in read.tool_calls]
        assert (arguments, read.content) == ([{"text": text, "items": ["a'd", "b"]}, {"text": text}], None)
