"""A message that a model's own template has written is read back as that message.

A model was trained on what its template makes of messages with calls and reasoning, so the template, rendered by Jinja,
says what such a message looks like when the model writes it.
"""

import json

import jinja_environment
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing_cases.formats import FORMATS, STRING, read_in_pieces, template, tool
from rocmforge.parsing import ChatFormat, find_format
from rocmforge.parsing.formats import GEMMA_THINK, MISTRAL_THINK, THINK

SCHEMAS = {
    "text": STRING,
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "options": {"type": "object"},
}
TOOL = tool("do_it", **SCHEMAS)
# Templates of models with tools; whether they write reasoning beside a call, an answer beside it, and more calls.
MODELS = {
    "Qwen-Qwen2.5-7B-Instruct": (False, True, True),
    "Qwen-Qwen3-0.6B": (True, True, True),
    "Qwen-Qwen3.5-4B": (True, True, True),
    "ibm-granite-granite-4.0": (False, True, True),
    "zai-org-GLM-4.5": (True, True, True),
    "meta-llama-Llama-3.1-8B-Instruct": (False, False, False),
    "meta-llama-Llama-3.2-3B-Instruct": (False, False, False),
    "mistralai-Mistral-Nemo-Instruct-2407": (False, False, True),
    "google-gemma-4-E2B-it": (True, False, True),
    "openai-gpt-oss-20b": (True, False, False),
}
# Their calls end with no token of the template's own.
OPEN_ENDED = {"google-gemma-4-E2B-it", "zai-org-GLM-4.5"}
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<|end_of_text|>", "<|call|>", "<|return|>", "<turn|>")
USER = {"role": "user", "content": "Do it."}


@pytest.fixture(scope="module")
def jinja():
    environment = jinja_environment.environment()
    environment.globals["strftime_now"] = lambda form: "2026-01-01"
    return {name: environment.from_string(template(name)) for name in MODELS}


def rendered(jinja, name, messages, **options):
    context = {"bos_token": "<s>", "eos_token": "</s>", "tools": [TOOL], "enable_thinking": True}
    return jinja[name].render(messages=messages, **context, **options)


def written(jinja, name, message):
    """The end of the prompt, and what the model writes behind it up to the end of its turn."""
    prompt = rendered(jinja, name, [USER], add_generation_prompt=True)
    whole = rendered(jinja, name, [USER, message], add_generation_prompt=False)
    assert whole.startswith(prompt)
    output = whole[len(prompt) :].rstrip("\n")
    end = next((end for end in ENDS if output.endswith(end)), "")
    assert end or name in OPEN_ENDED
    return prompt, output.removesuffix(end)


# Words without markers, and such that begin like one.
WORDS = st.lists(st.sampled_from(["Ünder", "a", "<b>", "</", "{x}", "[TOOL", "<tool_c", "fn(1, 2)", "\n\n", "5", "\\"]))
SAID = st.lists(WORDS.map(" ".join), max_size=3).map(" ".join).map(str.strip)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")).filter(lambda text: "<|" not in text)
JSON = st.recursive(
    st.booleans() | st.integers() | st.floats(-1e15, 1e15) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"\A[a-z_]{1,5}\Z"), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "count": st.integers(),
        "share": st.floats(-1e15, 1e15),
        "flag": st.booleans(),
        "items": st.lists(JSON, max_size=3),
        "options": st.dictionaries(st.from_regex(r"\A[a-z_]{1,5}\Z"), JSON, max_size=3),
    },
)


def call(arguments):
    return {"id": "abcdefghi", "type": "function", "function": {"name": "do_it", "arguments": arguments}}


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_message_with_calls_is_read_back(jinja, name, data):
    reasons, answers, repeats = MODELS[name]
    arguments = data.draw(st.lists(ARGUMENTS, min_size=1, max_size=3 if repeats else 1))
    content = data.draw(SAID) if answers else ""
    reasoning = data.draw(SAID) if reasons else ""
    message = {"role": "assistant", "content": content, "tool_calls": [call(given) for given in arguments]}
    if reasoning:
        # gpt-oss has a name of its own for it.
        message |= {"thinking": reasoning} if "gpt-oss" in name else {"reasoning_content": reasoning}
    prompt, output = written(jinja, name, message)
    read = read_in_pieces(find_format(template(name)), output, data.draw(st.integers(1, 9)), [TOOL], prompt)
    assert [(one.name, json.loads(one.arguments)) for one in read.tool_calls] == [("do_it", one) for one in arguments]
    assert (read.content or "", read.reasoning_content or "") == (content, reasoning)


def test_formats_are_found():
    plain = ChatFormat()
    expected = {
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ChatFormat(None, "hermes"),
        "Qwen-Qwen2.5-7B-Instruct": ChatFormat(None, "hermes"),
        "Qwen-Qwen3-0.6B": ChatFormat(THINK, "hermes"),
        "Qwen-Qwen3.5-4B": ChatFormat(THINK, "qwen-xml"),
        "ibm-granite-granite-4.0": ChatFormat(None, "hermes"),
        "zai-org-GLM-4.5": ChatFormat(THINK, "glm"),
        "meta-llama-Llama-3.1-8B-Instruct": ChatFormat(None, "llama"),
        "meta-llama-Llama-3.2-3B-Instruct": ChatFormat(None, "llama"),
        "mistralai-Mistral-Nemo-Instruct-2407": ChatFormat(None, "mistral"),
        "google-gemma-4-E2B-it": ChatFormat(GEMMA_THINK, "gemma4"),
        "openai-gpt-oss-20b": ChatFormat(None, "harmony"),
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ChatFormat(THINK, None),
        "google-gemma-2-2b-it": plain,
        "google-gemma-3-4b-it": plain,
        "microsoft-Phi-3.5-mini-instruct": plain,
    }
    assert {name: find_format(template(name)) for name in expected} == expected
    assert set(MODELS) < set(expected)
    assert find_format(None) == find_format("") == plain
    # Magistral's and Ministral's templates write reasoning so.
    assert (
        find_format("{{ '[THINK]' }}{{ '[TOOL_CALLS]' }}") == FORMATS["mistral"] == ChatFormat(MISTRAL_THINK, "mistral")
    )
