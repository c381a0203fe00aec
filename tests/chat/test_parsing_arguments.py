"""Arguments that models write as plain text, as JSON by the schema of the tool."""

import json

import pytest
from parsing_cases.formats import FORMATS, STRING
from rocmforge.parsing import parse

SCHEMA = {
    "type": "object",
    "properties": {
        "anyof_int": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 5},
        "anyof_str": {"anyOf": [STRING, {"type": "null"}]},
        "anyof_array": {"anyOf": [{"type": "array", "items": STRING}, {"type": "null"}]},
        "type_as_array": {"type": ["integer", "null"]},
        "multi_non_null": {"anyOf": [STRING, {"type": "integer"}, {"type": "null"}]},
        "string": STRING,
        "boolean": {"type": "boolean"},
        "object": {"type": "object"},
        "enum": {"enum": ["1", "2"]},
        "const": {"const": 1},
        "reference": {"$ref": "#/$defs/Unit~1s"},
        "circle": {"$ref": "#/$defs/Circle"},
        "one_open": {"anyOf": [STRING, {}]},
        "all": {"allOf": [STRING, {"minLength": 1}]},
        "open": {},
        "broken": {"type": 5},
        "none": None,
    },
    "$defs": {"Unit/s": STRING, "Circle": {"$ref": "#/$defs/Circle"}},
}
# Parameter, what the model writes, the argument; the first ones are those of the tests of vLLM's parser.
VALUES = [
    ("anyof_int", "5", 5),
    ("anyof_str", "hello", "hello"),
    ("anyof_array", '["a", "b", "c"]', ["a", "b", "c"]),
    ("type_as_array", "42", 42),
    ("multi_non_null", "some text", "some text"),
    ("object", '{"key": "value"}', {"key": "value"}),
    ("boolean", "true", True),
    # Qwen's templates show Python's words.
    ("boolean", "True", True),
    ("anyof_int", "None", None),
    ("anyof_str", "null", None),
    ("anyof_str", "nul", "nul"),
    ("anyof_str", "nullable", "nullable"),
    ("anyof_str", "", ""),
    ("multi_non_null", "42", "42"),
    ("string", "42", "42"),
    ("string", "null", "null"),
    ("string", ' {"a": 1}\n\t"é"\\', ' {"a": 1}\n\t"é"\\'),
    ("enum", "1", "1"),
    ("const", "1", 1),
    ("reference", "1", "1"),
    ("circle", "1", 1),
    ("one_open", "1", 1),
    ("all", "1", "1"),
    ("open", "1.5e3", 1500.0),
    ("open", '"quoted"', '"quoted"'),
    ("open", "a word", "a word"),
    ("unknown", "[1, {}]", [1, {}]),
    ("broken", "1", 1),
    ("none", "x", "x"),
    # Texts that are no JSON stay strings, and JSON has no number for these.
    ("anyof_int", "five", "five"),
    ("anyof_int", "05", "05"),
    ("anyof_int", "NaN", "NaN"),
    # Some templates write objects and lists as Python does; a parameter that may be a string keeps them.
    ("object", "{'key': [1, True, 'it\\'s']}", {"key": [1, True, "it's"]}),
    ("object", "{'key': 1", "{'key': 1"),
    ("string", "{'key': 1}", "{'key': 1}"),
    ("open", "{'key': 1}", "{'key': 1}"),
    ("anyof_str", "None", None),
    ("anyof_str", "Nones", "Nones"),
    ("object", "[" * 100_000, "[" * 100_000),
]
TOOLS = {
    "openai": {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    "responses": {"type": "function", "name": "f", "parameters": SCHEMA},
    "anthropic": {"name": "f", "input_schema": SCHEMA},
}


@pytest.mark.parametrize("interface", TOOLS)
@pytest.mark.parametrize("form", ["qwen-xml", "glm"])
def test_values_follow_the_schema(form, interface):
    for key, text, expected in VALUES:
        parameter = {
            "qwen-xml": f"<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n",
            "glm": f"f\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n",
        }[form]
        (call,) = parse(FORMATS[form], f"<tool_call>{parameter}</tool_call>", [TOOLS[interface]]).tool_calls
        assert json.loads(call.arguments) == {key: expected}, (key, text[:20])


@pytest.mark.parametrize("tool", [{"name": "f"}, {"name": "f", "parameters": None}, {"name": "f", "parameters": []}])
def test_tools_without_a_schema_can_be_called(tool):
    text = "<tool_call><function=f>\n<parameter=a>\n1\n</parameter>\n</function></tool_call>"
    (call,) = parse(FORMATS["qwen-xml"], text, [tool]).tool_calls
    assert json.loads(call.arguments) == {"a": 1}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # Line breaks within strings, backslashes that begin no escape, commas too many, Python's words.
        ('{"code": "a\nb\tc"}', {"code": "a\nb\tc"}),
        (r'{"pattern": "\d+\.\u12"}', {"pattern": r"\d+\.\u12"}),
        ('{"a": [1, 2, ], }', {"a": [1, 2]}),
        ('{"a": [True, False, None]}', {"a": [True, False, None]}),
    ],
)
def test_small_errors_are_mended(written, expected):
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}}}</tool_call>'
    message = parse(FORMATS["hermes"], text, [TOOLS["openai"]])
    assert [json.loads(call.arguments) for call in message.tool_calls] == [expected]
    assert message.content is None


def test_an_id_of_no_use_is_replaced():
    text = '[TOOL_CALLS][{"name": "f", "id": "1", "arguments": {}}, {"id": "abcdefgh9", "name": "f", "arguments": {}}]'
    first, second = parse(FORMATS["mistral"], text, [TOOLS["openai"]]).tool_calls
    assert len(first.id) == 9
    assert second.id == "abcdefgh9"


def test_long_words_end_a_call():
    """A number, a name or a key without end is not waited for."""
    for text in ['{"name": "f", "arguments": {"a": ' + "1" * 2000, '{"name": "f", "arguments": {"a": ' + "1" * 100_000]:
        message = parse(FORMATS["hermes"], "<tool_call>" + text, [TOOLS["openai"]])
        assert message.tool_calls[0].arguments == '{"a": '
        assert message.content == "1" * text.count("1")
    assert parse(FORMATS["glm"], "<tool_call>" + "a" * 1000, [TOOLS["openai"]]).tool_calls == []
