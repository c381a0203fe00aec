"""Grammars of Gemma 4's calls: a model with random weights writes by them, and writes nothing but what fits.

What it wrote is read by the parser of calls and checked by jsonschema. Where a schema allows few values, all of them
are written, as Gemma's own chat template writes them when Jinja renders it.
"""

import itertools
import json
import os
import re

import jinja_environment
import jsonschema
import pytest
from marked_models import model_of
from parsing_cases.formats import FORMATS, template
from random_schemas import GemmaSchemas
from rocmforge import LLM, SamplingParams, StructuredOutputsParams
from rocmforge.parsing import UnsupportedCallsError, call_grammar, parse

FORM = FORMATS["gemma4"]
TEMPLATE = template("google-gemma-4-E2B-it")
# `make test-deep` asks for 1,000.
NUM_SCHEMAS = int(os.environ.get("ROCMFORGE_TEST_SCHEMAS", "60"))
# Random weights have favourites: at this temperature every allowed token comes now and then.
VARIED = 50.0


@pytest.fixture(scope="module")
def llm(tiny_model, tmp_path_factory):
    """A model with random weights whose vocabulary has the markers as control tokens."""
    path = model_of("gemma4", tmp_path_factory.mktemp("gemma4"), tiny_model)
    with LLM(path, max_model_len=2048, max_num_seqs=16, num_threads=1, seed=3) as llm:
        yield llm


def tool(schema, name="do_it"):
    return {"type": "function", "function": {"name": name, "description": "A tool", "parameters": schema}}


def as_text(marker):
    """Markers as a vocabulary has them in which they are no control tokens."""
    return json.dumps(marker)


def grammar_of(schema, marker=as_text, *, strict=True):
    return call_grammar(FORM, TEMPLATE, [tool(schema)], marker, strict=["do_it"] if strict else [], parallel=False)


def written(llm, schemas, marks, *, strict=True, n=1, temperature=1.0):
    """The texts that the model writes by the grammars of schemas; each has ended by itself."""
    tokenizer = llm.tokenizer

    def token(marker):
        (token_id,) = tokenizer.encode(marker, add_special=False, parse_special=True)
        return f"<[{token_id}]>"

    params = []
    for seed, schema in enumerate(schemas):
        grammar = grammar_of(schema, token if marks == "tokens" else as_text, strict=strict).grammar
        form = StructuredOutputsParams(grammar=grammar)
        settings = {"n": n, "temperature": temperature, "max_tokens": 1800, "skip_special_tokens": False}
        params.append(SamplingParams(seed=seed, structured_outputs=form, **settings))
    outputs = llm.generate(["x"] * len(params), params, progress=False)
    assert {one.finish_reason for output in outputs for one in output.outputs} == {"stop"}
    return [[one.text for one in output.outputs] for output in outputs]


def arguments(text, schema):
    """The arguments of the one call that a text is."""
    message = parse(FORM, text, [tool(schema)])
    (call,) = message.tool_calls
    assert (message.content, message.reasoning_content, call.name) == (None, None, "do_it"), text
    return json.loads(call.arguments)


@pytest.mark.parametrize("marks", ["tokens", "texts"])
def test_random_schemas_give_calls_that_fit(llm, marks, assert_nothing_left):
    schemas = []
    for seed in range(NUM_SCHEMAS):
        kinds = GemmaSchemas(seed)
        schemas.append({**kinds.object(0), "$defs": kinds.definitions})
    assert len({json.dumps(schema) for schema in schemas}) > NUM_SCHEMAS * 0.7
    for schema, texts in zip(schemas, written(llm, schemas, marks), strict=True):
        jsonschema.Draft202012Validator(schema).validate(arguments(texts[0], schema))
    assert_nothing_left(llm)


ABSENT = object()
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
# Schemas with few values, and for each argument values among which these are.
FEW = {
    "order and commas": (
        {
            "properties": {"b": {"type": "boolean"}, "C": {"const": 1}, "a": {"enum": ["x", "y, {z}"]}},
            "required": ["C"],
        },
        {"a": ["x", "y, {z}", "z"], "b": [True, False, "true"], "C": [1, 2]},
    ),
    "no argument": ({"properties": {}}, {}),
    "optional ones alone": (
        {"properties": {"z": {"const": "z"}, "y": {"type": "integer", "minimum": 9, "maximum": 10}}},
        {"z": ["z"], "y": [8, 9, 10, 11, 9.5]},
    ),
    "lists": (
        {
            "properties": {
                "few": {"type": "array", "items": {"enum": [1, "a"]}, "minItems": 1, "maxItems": 2},
                "prefix": {"type": "array", "prefixItems": [{"const": 0}, {"const": True}], "items": False},
            },
            "required": ["few"],
        },
        {
            "few": [list(each) for size in range(4) for each in itertools.product([1, "a"], repeat=size)],
            "prefix": [[], [0], [0, True], [True], [0, True, 0]],
        },
    ),
    "longer lists": (
        {
            "properties": {
                "a": {"type": "array", "prefixItems": [{"const": "p"}], "items": {"const": 7}, "minItems": 2,
                      "maxItems": 4},
                "none": {"type": "array", "items": {"type": "integer"}, "maxItems": 0},
            },
            "required": ["a", "none"],
        },
        {"a": [["p"] * p + [7] * s for p in range(3) for s in range(6)], "none": [[], [1]]},
    ),
    "combinations": (
        {
            "properties": {
                "any": {"type": "object", "properties": {"k": {"enum": [1, 2]}},
                        "anyOf": [{"required": ["k"]}, {"properties": {"m": {"const": "m"}}, "required": ["m"]}]},
                "all": {"allOf": [{"$ref": "#/$defs/small"}, {"minimum": 3}], "title": "Beside it"},
            },
            "required": ["any", "all"],
            "$defs": {"small": {"type": "integer", "maximum": 4}},
        },
        {"any": [{}, {"k": 1}, {"k": 2}, {"m": "m"}, {"k": 1, "m": "m"}, {"k": 2, "m": "m"}], "all": [2, 3, 4, 5]},
    ),
    "values of several types": (
        {"properties": {"v": {"type": ["boolean", "string"], "maxLength": 1, "pattern": "^[ab]?$"}}, "required": ["v"]},
        {"v": [True, False, "", "a", "b", "ab", "c", 0]},
    ),
    "given objects": (
        {"properties": {"v": {"enum": [{"b": [1.5, "x"], "A": {}}, [], -3]}}, "required": ["v"]},
        {"v": [{"A": {}, "b": [1.5, "x"]}, [], -3, {}]},
    ),
    "definitions": (
        {"properties": {"unit": {"$ref": "#/$defs/unit", "description": "Which"}}, "required": ["unit"],
         "$defs": {"unit": {"$ref": "#/$defs/other"}, "other": {"enum": ["m", "\x7f\n\"\\"]}}},
        {"unit": ["m", "\x7f\n\"\\", "ft"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("marks", ["tokens", "texts"])
@pytest.mark.parametrize("name", FEW)
def test_all_values_are_written_as_the_template_does(llm, name, marks, assert_nothing_left):
    schema, values = FEW[name]
    schema = {"type": "object", "additionalProperties": False, **schema}
    validator = jsonschema.Draft202012Validator(schema)
    jinja = jinja_environment.environment().from_string(TEMPLATE)
    expected = set()
    for chosen in itertools.product(*([ABSENT, *of_key] for of_key in values.values())):
        given = {key: value for key, value in zip(values, chosen, strict=True) if value is not ABSENT}
        if validator.is_valid(given):
            call = {"type": "function", "function": {"name": "do_it", "arguments": given}}
            messages = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}]
            rendered = jinja.render(messages=messages, bos_token="", tools=[tool(schema)])
            expected.add(re.search(r"<\|tool_call>.*<tool_call\|>", rendered, re.DOTALL)[0])
    (texts,) = written(llm, [schema], marks, n=256, temperature=VARIED)
    assert set(texts) == expected
    assert_nothing_left(llm)


def test_schemas_within_themselves(llm, assert_nothing_left):
    """A list of lists, a chain, and values that nothing is said about, as deep as the model likes."""
    schemas = [
        {"type": "object", "properties": {"node": {"$ref": "#/$defs/node"}}, "required": ["node"],
         "$defs": {"node": NODE}},
        {"type": "object", "properties": {"all": {"$ref": "#"}}, "additionalProperties": False},
        {"type": "object", "properties": {"list": {"$ref": "#/$defs/list"}}, "required": ["list"],
         "$defs": {"list": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]},
                            "maxItems": 2}}},
    ]  # fmt: skip
    for schema, texts in zip(schemas, written(llm, schemas, "tokens", n=16, temperature=VARIED), strict=True):
        found = [arguments(text, schema) for text in texts]
        for each in found:
            jsonschema.Draft202012Validator(schema).validate(each)
        assert len(set(map(str, found))) > 2
    assert_nothing_left(llm)


def test_open_objects(llm, assert_nothing_left):
    """Names beside those of the schema are written where it allows them, and their values fit what it says of them."""
    bit = {"type": "boolean"}
    closed = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    open_ = {**closed, "additionalProperties": bit}
    needed = {"type": "object", "required": ["b"], "additionalProperties": bit}
    schemas = [{"type": "object", "properties": {"v": each}, "required": ["v"]} for each in (closed, open_, needed)]
    texts = written(llm, schemas, "tokens", n=48, temperature=VARIED)
    found = [[arguments(text, schema) for text in of_schema] for schema, of_schema in zip(schemas, texts, strict=True)]
    for schema, values in zip(schemas, found, strict=True):
        for value in values:
            jsonschema.Draft202012Validator(schema).validate(value)
    sizes = [{len(value["v"]) for value in values} for values in found]
    assert sizes[0] == {1}
    assert all(len(size) > 1 for size in sizes[1:]), sizes
    assert_nothing_left(llm)


def test_texts_have_no_mark_in_them(llm, assert_nothing_left):
    """Whatever the model writes between the marks is the text, marks apart."""
    schema = {"type": "object", "properties": {"t": {"type": "string", "pattern": '^(<\\|"\\||>|<){1,4}$'}}}
    for marks in ("tokens", "texts"):
        (texts,) = written(llm, [schema], marks, n=128, temperature=VARIED)
        found = {arguments(text, schema).get("t") for text in texts}
        assert len(found) > 8
        for text in found - {None}:
            jsonschema.validate({"t": text}, schema)
            assert '<|"|>' not in text
    assert_nothing_left(llm)


def refused(argument, **others):
    return {"type": "object", "properties": {"a": argument}, **others}


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (refused({"type": "string", "format": "date"}), "do_it: .* no way to enforce format in the argument a"),
        (refused({"oneOf": [{"type": "string"}]}), "enforce oneOf in the argument a"),
        (refused({"type": "array", "items": {"type": "array", "uniqueItems": True}}), r"uniqueItems in .* a\[\]"),
        (refused({"type": "object", "patternProperties": {}}), "enforce patternProperties in the argument a"),
        (refused({"not": {}}), "enforce not in"),
        (refused({}, minProperties=1), "enforce minProperties in its schema"),
        (refused({"type": "string", "pattern": "(?=a)b"}), "enforce the pattern .*no lookarounds.* in the argument a"),
        (refused({"enum": ["a"], "minLength": 1}), "enforce minLength beside enum or const in"),
        (refused({"allOf": [{"minimum": 1}, {"minimum": 2}]}), "enforce allOf in the argument a"),
        (refused({"additionalProperties": False, "allOf": [{"properties": {"b": {}}}, {}]}), "allOf in the argument a"),
        (refused({"$ref": "#/$defs/b"}), "the reference '#/\\$defs/b', expected one to a part of the schema"),
        (refused({"$ref": "#/properties/a"}), "a schema that is defined by itself"),
        (refused({"type": "text"}), "got the type 'text', expected one of string"),
        (refused({"type": []}), r"got the type \[\]"),
        (refused({"type": [{}]}), r"got the type \[{}\]"),
        (refused({}, required=[[]]), "properties or required"),
        (refused({"type": "integer", "enum": ["a"]}), "with the type integer, expected a value of the type"),
        (refused({"enum": "a"}), "got enum 'a', expected a list"),
        (refused({"anyOf": []}), r"got anyOf \[\], expected a list of schemas"),
        (refused({"type": "string", "minLength": 3, "maxLength": 2}), "minLength 3 and maxLength 2, expected"),
        (refused({"type": "array", "minItems": -1}), "minItems -1 and maxItems None, expected whole numbers"),
        (refused({"type": "array", "items": False, "minItems": 1}), "minItems 1 with 0 items at most"),
        (refused({"type": "array", "prefixItems": {}}), "prefixItems {}, expected a list"),
        (refused(False), "a schema that allows no value"),
        (refused(5), "got 5, expected a schema"),
        (refused({}, required="a"), "properties or required"),
        (refused({"enum": ['<|"|>']}), "no place for the text"),
        ({"type": "object", "properties": {"a:b": {}}}, "no place for the key 'a:b'"),
        ({"type": "object", "properties": {" a": {}}}, "no place for the key ' a'"),
        ({"type": "string"}, "got the type string, expected the type object"),
    ],
)  # fmt: skip
def test_strict_schemas_that_are_refused(schema, match):
    with pytest.raises(UnsupportedCallsError, match=match):
        grammar_of(schema)


def test_too_many_layers_are_refused():
    schema = {}
    for _ in range(600):
        schema = {"type": "array", "items": schema}
    for strict in (True, False):
        with pytest.raises(UnsupportedCallsError, match="too many layers"):
            grammar_of(refused(schema), strict=strict)


def test_schemas_that_are_not_strict_lose_what_is_not_supported(llm, assert_nothing_left):
    argument = {
        "type": "object",
        "properties": {
            "date": {"type": "string", "format": "date", "maxLength": 3, "pattern": "(?!a)"},
            "one": {"oneOf": [{"const": 1}, {"const": 2}]},
            "all": {"allOf": [{"type": "boolean"}, {"type": "string"}, {"not": {"const": True}}]},
        },
        "required": ["date", "one", "all"],
        "minProperties": 3,
    }
    (texts,) = written(llm, [refused(argument, required=["a"])], "tokens", strict=False, n=32, temperature=VARIED)
    found = [arguments(text, refused(argument))["a"] for text in texts]
    assert {each["one"] for each in found} == {1, 2}
    assert {each["all"] for each in found} == {True, False}
    assert all(len(each["date"]) <= 3 for each in found)
    assert_nothing_left(llm)


def test_calls_that_are_not_forced_begin_behind_their_token():
    made = call_grammar(FORM, TEMPLATE, [tool({})], as_text, strict=["do_it"], forced=False)
    assert made.begin == "<|tool_call>"
    assert made.grammar.startswith('start: "call:" ')
