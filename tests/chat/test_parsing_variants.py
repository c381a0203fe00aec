"""Forced calls are written as the template of the model writes them, and end where they may end."""

import json

import pytest
from jinja_environment import renderer
from parsing_cases.families import FAMILIES, TEXT, chat, each, tags
from parsing_cases.formats import tool
from rocmforge import LLM, SamplingParams, StructuredOutputsParams
from rocmforge.parsing import call_grammar, find_format, parse

TOOL = tool("do_it", flag={"type": "boolean"}, unit={"enum": ["C", "F"]})
TOOL["function"]["parameters"] |= {"required": ["flag", "unit"], "additionalProperties": False}


@pytest.fixture(scope="module")
def llm(long_model):
    with LLM(long_model, max_model_len=1024, num_threads=1, seed=1) as llm:
        yield llm


def forced(llm, source, *, parallel):
    """Texts that a model with random weights writes by the grammar of a template, those that ended."""
    form = find_format(source, renderer(source))
    made = call_grammar(form, source, [TOOL], json.dumps, parallel=parallel)
    asked = StructuredOutputsParams(grammar=made.grammar)
    params = SamplingParams(max_tokens=300, temperature=1.0, n=4, structured_outputs=asked)
    outputs = llm.generate([[5]], params, progress=False)[0].outputs
    return form, [one.text for one in outputs if one.finish_reason == "stop"]


@pytest.mark.parametrize("name", ["minimax-m2", "deepseek-v3.2", "hunyuan-dense", "kimi-k2"])
def test_several_calls_may_end(llm, name):
    """C7: the same white space separates calls and ends them."""
    form, texts = forced(llm, FAMILIES[name], parallel=True)
    assert texts
    for text in texts:
        message = parse(form, text, [TOOL])
        assert {call.name for call in message.tool_calls} == {"do_it"}
        assert message.content is None


GLM = each(
    "<tool_call>{{ f.name }}{{ br }}"
    + tags("<arg_key>{{ k }}</arg_key>{{ br }}<arg_value>" + TEXT + "</arg_value>{{ br }}")
    + "</tool_call>"
)
VARIANTS = {
    # A template, a text that stands in its calls, and one that does not.
    "glm-lines": ("{% set br = '\\n' %}" + chat(GLM), "</arg_value>\n", "</arg_value><"),
    "glm-compact": ("{% set br = '' %}" + chat(GLM), "</arg_value><", "\n"),
    "bare": (chat(each('{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}')), '"arguments"', '"param'),
    "counted": (FAMILIES["command-a"], '"tool_call_id": "', "functions"),
    "mistral-ids": (chat(each("[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}")),
                    "[CALL_ID]", "[CALL_ID]["),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_forced_as_it_is_written(llm, name):
    """C7: formats with readers of their own have variants too."""
    source, present, absent = VARIANTS[name]
    form, texts = forced(llm, source, parallel=False)
    assert any(present in text for text in texts)
    for text in texts:
        assert absent not in text
        (call,) = parse(form, text, [TOOL]).tool_calls
        arguments = json.loads(call.arguments)
        assert (arguments.pop("unit") in ("C", "F"), arguments) in ((True, {"flag": True}), (True, {"flag": False}))
        assert name != "mistral-ids" or len(call.id) == 9
