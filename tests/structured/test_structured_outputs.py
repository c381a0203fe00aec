"""Structured output: what comes is checked by other libraries (jsonschema, re, lark) than the one that guides it."""

import asyncio
import copy
import json
import os
import pickle
import re
import time

import jsonschema
import lark
import pytest
from conftest import collect
from pydantic import BaseModel
from random_schemas import Schemas
from rocmforge import LLM, AsyncLLM, InvalidRequestError, SamplingParams, StructuredOutputsParams

# `make test-deep` asks for 1,000.
NUM_SCHEMAS = int(os.environ.get("ROCMFORGE_TEST_SCHEMAS", "100"))

# Random weights have favourites: at this temperature every allowed token comes now and then.
VARIED = 50.0

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "capital": {"type": "boolean"},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "population", "capital", "rivers"],
    "additionalProperties": False,
}

ARITHMETIC = r"""
start: sum
sum: product (("+" | "-") product)~0..2
product: factor (("*" | "/") factor)~0..2
factor: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,3}/
"""


# This describes the language of ARITHMETIC in llama.cpp's syntax.
ARITHMETIC_GBNF = r"""
root    ::= sum
sum     ::= product (("+" | "-") product){0,2}
product ::= factor (("*" | "/") factor){0,2}
factor  ::= [0-9]{1,3} | "(" sum ")"
"""


def compact(**form):
    return StructuredOutputsParams(**form, disable_any_whitespace=True)


@pytest.fixture(scope="module")
def llm(long_model):
    """A tiny model with random weights, which wants to write anything."""
    with LLM(long_model, max_model_len=1024, max_num_seqs=16, num_threads=1, seed=3) as llm:
        yield llm


def completions(llm, params, prompt="x"):
    """The outputs of a request; each has ended by itself."""
    prompts = [prompt] if isinstance(params, SamplingParams) else [prompt] * len(params)
    return [one for output in llm.generate(prompts, params) for one in output.outputs]


def check_schemas(llm, schemas):
    """Every schema gives JSON that it allows. Random weights may fill a string to its last token: none is left over."""
    params = [
        SamplingParams(max_tokens=900, seed=i, structured_outputs=compact(json=schema))
        for i, schema in enumerate(schemas)
    ]
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for schema, one in zip(schemas, completions(llm, params), strict=True):
        assert one.finish_reason == "stop", (schema, one.text)
        value = json.loads(one.text)
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(value)


def test_random_schemas_give_valid_json(llm, assert_nothing_left):
    schemas = [Schemas(seed).document() for seed in range(NUM_SCHEMAS)]
    assert len({json.dumps(schema) for schema in schemas}) > NUM_SCHEMAS * 0.8
    check_schemas(llm, schemas)
    assert_nothing_left(llm)


def test_a_real_model_writes_json(smollm2_path, assert_nothing_left):
    messages = [{"role": "user", "content": "Describe the city of Paris as JSON."}]
    with LLM(smollm2_path, max_model_len=512, max_num_seqs=4) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=200, structured_outputs=compact(json=CITY))
        one = llm.chat(messages, params)[0].outputs[0]
        assert one.finish_reason == "stop"
        jsonschema.validate(json.loads(one.text), CITY)
        assert "Paris" in one.text
        loose = params.replace(structured_outputs=StructuredOutputsParams(json=json.dumps(CITY)))
        one = llm.chat(messages, loose)[0].outputs[0]
        jsonschema.validate(json.loads(one.text), CITY)
        yes = params.replace(structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
        assert llm.chat(messages, yes)[0].outputs[0].text in ("yes", "no")
        assert_nothing_left(llm)


@pytest.mark.parametrize(
    "pattern",
    [
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
        r"[a-z]{3,9}(, [a-z]{3,9}){0,3}\.",
        r"(yes|no|maybe)( indeed)?",
        r"[äöü€]{2,6}",
        r"\"[^\"\\]{0,9}\"",
        r"(a/b|c\\d)+x{2}",
    ],
)
def test_regex(llm, pattern, assert_nothing_left):
    form = StructuredOutputsParams(regex=pattern)
    params = SamplingParams(n=8, max_tokens=500, seed=5, temperature=VARIED, structured_outputs=form)
    outputs = completions(llm, params)
    for one in outputs:
        if one.finish_reason == "stop":
            assert re.fullmatch(pattern, one.text), one.text
    assert sum(one.finish_reason == "stop" for one in outputs) >= 6
    assert len({one.text for one in outputs}) > 1
    assert_nothing_left(llm)


def test_choice(llm, assert_nothing_left):
    texts = ["yes", "yesterday", 'a "quoted" word', "back\\slash", "two\nlines", "größer", "</s>", "/* | */"]
    form = StructuredOutputsParams(choice=texts)
    outputs = completions(llm, SamplingParams(n=64, seed=1, temperature=VARIED, structured_outputs=form))
    assert {one.text for one in outputs} <= set(texts)
    assert len({one.text for one in outputs}) > 3
    assert {one.finish_reason for one in outputs} == {"stop"}
    # Each text on its own: whatever the model wants to write.
    for text in texts:
        one = StructuredOutputsParams(choice=[text])
        assert [one.text for one in completions(llm, SamplingParams(structured_outputs=one))] == [text]
    assert_nothing_left(llm)


@pytest.mark.parametrize("grammar", [ARITHMETIC, ARITHMETIC_GBNF], ids=["lark", "gbnf"])
def test_grammar(llm, assert_nothing_left, grammar):
    params = SamplingParams(n=16, max_tokens=900, seed=2, structured_outputs=StructuredOutputsParams(grammar=grammar))
    parser = lark.Lark(ARITHMETIC)
    complete = [one.text for one in completions(llm, params) if one.finish_reason == "stop"]
    for text in complete:
        parser.parse(text)
    assert len(set(complete)) > 4
    assert_nothing_left(llm)


def test_json_object_and_white_space(llm, assert_nothing_left):
    form = StructuredOutputsParams(json_object=True, whitespace_pattern=" ?")
    outputs = completions(llm, SamplingParams(n=16, max_tokens=200, seed=2, structured_outputs=form))
    for one in outputs:
        assert one.text.startswith("{")
        if one.finish_reason == "stop":
            assert isinstance(json.loads(one.text), dict)
    spaced = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}
    form = StructuredOutputsParams(json=spaced, whitespace_pattern=r"[ \n]{2}")
    for one in completions(llm, SamplingParams(n=16, max_tokens=200, seed=2, structured_outputs=form)):
        value = re.sub(r"[ \n]{2}", "~", one.text)
        assert re.fullmatch(r"\[~*(true|false)(~*,~*(true|false)){1,3}~*\]", value)
    assert_nothing_left(llm)


def test_company_changes_nothing(long_model, llm, assert_nothing_left):
    """Alone, in a batch with free text and other grammars, preempted, chunked and after a prefix hit: the same text."""
    schemas = [Schemas(seed).document() for seed in (3, 14, 15, 92)]
    params = [SamplingParams(max_tokens=80, seed=i, structured_outputs=compact(json=s)) for i, s in enumerate(schemas)]
    form = StructuredOutputsParams(regex="[a-z]{100}")
    params += [SamplingParams(max_tokens=100, seed=i, temperature=VARIED, structured_outputs=form) for i in range(3)]
    params += [SamplingParams(max_tokens=60, seed=9, ignore_eos=True), SamplingParams(max_tokens=60, temperature=0.0)]
    alone = [completions(llm, one)[0].token_ids for one in params]
    assert [one.token_ids for one in completions(llm, params * 3)] == alone * 3
    # 10 blocks of 16 tokens for 6 sequences: they are preempted over and over; prompts come in pieces.
    small = {"max_num_batched_tokens": 16, "max_num_seqs": 6, "max_model_len": 128}
    with LLM(long_model, num_threads=1, seed=3, kv_cache_memory=blocks(llm, 10), **small) as crowded:
        assert [one.token_ids for one in completions(crowded, params)] == alone
        assert crowded.stats().num_preemptions > 0
        assert_nothing_left(crowded)
    assert_nothing_left(llm)


def blocks(llm, count):
    """Bytes of so many blocks."""
    return count * llm.memory().kv_cache // llm.stats().blocks_total


def test_forced_tokens_take_no_steps_of_their_own(llm, assert_nothing_left):
    """Behind a choice the form leaves one text alone: its tokens are computed several in a step."""
    text = " is the capital of a country in Europe, and has many inhabitants."
    form = StructuredOutputsParams(regex=f"(Paris|Rome|Oslo){re.escape(text)}")
    before = llm.stats().engine_steps
    one = completions(llm, SamplingParams(max_tokens=200, seed=5, logprobs=2, structured_outputs=form))[0]
    steps = llm.stats().engine_steps - before
    assert one.text.removesuffix(text) in ("Paris", "Rome", "Oslo")
    assert len(one.logprobs) == len(one.token_ids) > 15
    assert steps < len(one.token_ids) / 2
    # The model's tokenizer divides the text, as it does in a prompt.
    forced = llm.tokenizer.encode(one.text, add_special=False)
    assert one.token_ids[-8:] == forced[-8:]
    # The log-probabilities are those of the same tokens in one prompt.
    prompt = llm.tokenizer.encode("x")
    check = llm.generate([prompt + one.token_ids], SamplingParams(max_tokens=1, prompt_logprobs=0))[0]
    for token, entry, known in zip(one.token_ids, one.logprobs, check.prompt_logprobs[len(prompt) :], strict=True):
        assert entry[token].logprob == pytest.approx(known[token].logprob, abs=1e-4)
    assert_nothing_left(llm)


def test_sampling_settings_hold_under_a_grammar(llm, assert_nothing_left):
    form = StructuredOutputsParams(regex="[ab]{20}")
    base = SamplingParams(max_tokens=40, seed=1, structured_outputs=form)
    a, b = (llm.tokenizer.encode(f"x{c}", add_special=False)[-1] for c in "ab")
    # Bias and penalties choose among what is allowed.
    one = completions(llm, base.replace(logit_bias={a: 100}))[0]
    assert set(one.text) == {"a"}
    one = completions(llm, base.replace(temperature=0.0, logit_bias={a: 9, b: 9}, logprobs=3))[0]
    assert len(one.text) == 20
    # Log-probabilities are the model's own: the best three are hardly ever those that were allowed.
    assert all(len(entry) >= 3 for entry in one.logprobs)
    assert any(max(entry.values(), key=lambda x: x.logprob).rank == 1 for entry in one.logprobs)
    assert any(entry[token].rank > 3 for entry, token in zip(one.logprobs, one.token_ids, strict=True))
    # A stop string ends it before the grammar does.
    one = completions(llm, base.replace(logit_bias={a: 100}, stop=["aaaaa"]))[0]
    assert (one.text, one.finish_reason, one.stop_reason) == ("", "stop", "aaaaa")
    one = completions(llm, base.replace(max_tokens=3))[0]
    assert one.finish_reason == "length"
    assert_nothing_left(llm)


def test_ends_and_min_tokens(llm, assert_nothing_left):
    """End tokens come where the text may end, not before `min_tokens` unless nothing else may come."""
    ends = llm.tokenizer.eos_token_ids
    likely = dict.fromkeys(ends, 100.0)
    form = StructuredOutputsParams(regex="[ab]{3,30}")
    base = SamplingParams(n=8, max_tokens=60, seed=4, logit_bias=likely, structured_outputs=form)
    for one in completions(llm, base):
        assert len(one.text) == 3
        assert one.token_ids[-1] in ends
    for one in completions(llm, base.replace(min_tokens=10)):
        assert one.finish_reason == "stop"
        assert re.fullmatch("[ab]{3,30}", one.text)
        assert len(one.token_ids) > 10 or len(one.text) == 30
    for one in completions(llm, base.replace(ignore_eos=True)):
        assert len(one.text) == 30
        assert not set(one.token_ids) & set(ends)
    short = StructuredOutputsParams(choice=["ab"])
    for one in completions(llm, base.replace(min_tokens=50, structured_outputs=short)):
        assert (one.text, one.finish_reason) == ("ab", "stop")
    assert_nothing_left(llm)


BAD = [
    {"regex": "a("},
    {"regex": "(?=a)b"},
    {"grammar": "start: missing"},
    {"grammar": 'root ::= "a" item'},
    {"json": {"type": "strnig"}},
    {"json": {"$ref": "https://example.com/schema.json"}},
    {"json": {"type": "integer", "minimum": 4, "maximum": 3}},
    {"json_object": True, "whitespace_pattern": "("},
    {"regex": "(" * 50_000},
    {"grammar": "start: " + "(" * 50_000 + '"a"' + ")" * 50_000},
    {"json": {"type": "object", "properties": {f"key{i}": {"type": "string"} for i in range(5000)}}},
]


@pytest.mark.parametrize("form", BAD, ids=lambda form: next(iter(form)))
def test_bad_grammars_are_errors_and_lose_nothing(llm, form, assert_nothing_left):
    """The request is refused when it is made, in bounded time, with what is wrong; those beside it are not begun."""
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**form))
    before = llm.stats().generated_tokens
    start = time.monotonic()
    with pytest.raises(InvalidRequestError, match="structured_outputs"):
        llm.generate(["x", "x"], [SamplingParams(), params])
    assert time.monotonic() - start < 30
    assert llm.stats().generated_tokens == before
    assert completions(llm, SamplingParams(max_tokens=2, temperature=0.0))[0].token_ids
    assert_nothing_left(llm)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({}, "none, expected exactly one of json, regex, choice, grammar, json_object"),
        ({"regex": "a", "json_object": True}, "several"),
        ({"json": "{"}, "no JSON"),
        ({"json": "7"}, "neither an object"),
        ({"regex": ""}, "0 bytes"),
        ({"choice": []}, "0 texts"),
        ({"choice": ["a", ""]}, "empty text"),
        ({"grammar": "x" * 300_000}, "300000 bytes"),
        ({"regex": "a", "disable_any_whitespace": True}, "without JSON"),
        ({"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": " "}, "expected one of them"),
    ],
)
def test_settings_are_checked_when_made(fields, match):
    with pytest.raises(InvalidRequestError, match=match):
        StructuredOutputsParams(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"json": 5}, {"regex": 5}, {"choice": "abc"}, {"choice": [1]}, {"grammar": b"x"}, {"json": [{}]}],
)
def test_wrong_types_are_type_errors_that_name_the_field(fields):
    with pytest.raises(TypeError, match=next(iter(fields))):
        StructuredOutputsParams(**fields)


def test_settings_are_values():
    for form in (
        StructuredOutputsParams(json=CITY, disable_any_whitespace=True),
        StructuredOutputsParams(choice=["a", "b"]),
        StructuredOutputsParams(json_object=True, whitespace_pattern=" "),
    ):
        assert eval(repr(form)) == form
        assert pickle.loads(pickle.dumps(form)) == form
        assert copy.deepcopy(form) == form
        params = SamplingParams(structured_outputs=form)
        assert params.replace() == pickle.loads(pickle.dumps(params)) == params
        assert params.structured_outputs == form
        assert params != SamplingParams()
    assert json.loads(StructuredOutputsParams(json=CITY).json) == CITY


async def test_aborts_leave_nothing(long_model, assert_nothing_left):
    """Requests with grammars are left in the middle, waiting or running, before and while their masks are computed."""
    form = StructuredOutputsParams(regex="[a-z ]{900}")
    params = SamplingParams(max_tokens=900, seed=1, structured_outputs=form, output_kind="delta")

    async def leave(engine, after):
        async for _ in engine.generate("x", params):
            after -= 1
            if after <= 0:
                return

    with AsyncLLM(long_model, max_model_len=1024, max_num_seqs=4, num_threads=1) as engine:
        tasks = [asyncio.ensure_future(leave(engine, after)) for after in (1, 2, 3, 50, 1, 7, 20, 4)]
        hanging = [asyncio.ensure_future(collect(engine, "x", params)) for _ in range(6)]
        await asyncio.gather(*tasks)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        short = params.replace(structured_outputs=StructuredOutputsParams(choice=["done"]))
        outputs = await collect(engine, "x", short)
        assert "".join(output.outputs[0].text for output in outputs) == "done"
        await asyncio.to_thread(assert_nothing_left, engine)


def test_a_pydantic_class_is_its_schema():
    class City(BaseModel):
        name: str

    assert json.loads(StructuredOutputsParams(json=City).json) == City.model_json_schema()
    with pytest.raises(TypeError, match="as JSON text or as a Pydantic class"):
        StructuredOutputsParams(json=City(name="Rome"))
