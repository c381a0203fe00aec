"""An answer of a given form beside tools: the model calls, or its answer has the form; in every form of calls.

The model's weights are random, so that it keeps to no form by itself.
"""

import json

import jsonschema
import ollama
import openai
import pytest
from marked_models import FIRST, FORM_PARAMS, FORMS, model_of
from server_process import serving

THINKING = ["hermes", "glm", "gemma4", "harmony"]
MESSAGES = [{"role": "user", "content": "Go on."}]
CALL = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
ANSWER = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "description": "A tool", "parameters": CALL}} for name in "ab"]
FORM = {"type": "json_schema", "json_schema": {"name": "colour", "schema": ANSWER}}


@pytest.fixture(scope="module", params=FORM_PARAMS)
def form(request):
    """The form of calls."""
    return request.param


@pytest.fixture(scope="module")
def server(form, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp(form)
    with serving(folder, model_of(form, folder, tiny_model), "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def thinking(form):
    return {"extra_body": {"thinking_token_budget": 5}} if form in THINKING else {}


def begin(form, sign):
    """A bias for or against what begins a call, where the form has a token for it, which may be spelled as well."""
    _, control, text = FORMS[form]
    ids = [FIRST - index for index, marker in enumerate([*control, *text]) if marker in BEGIN]
    if ids and sign < 0:
        ids += [ord("<") - ord("!"), ord("[") - ord("!")]
    return {str(token): sign * 100 for token in ids}


BEGIN = ("<tool_call>", "[TOOL_CALLS]", "<|tool_call>")


def check(choice):
    """Says which of the two an answer is."""
    message = choice.message
    assert choice.finish_reason in ("stop", "tool_calls"), choice
    if message.tool_calls:
        assert not message.content
        for call in message.tool_calls:
            jsonschema.validate(json.loads(call.function.arguments), CALL)
        return "call"
    jsonschema.validate(json.loads(message.content), ANSWER)
    return "answer"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_or_the_form(client, form, stream):
    """C20: the model calls a tool or answers, and the answer has the form, also after reasoning."""
    found = set()
    for sign in (1, -1):
        asked = {
            "model": "tiny",
            "messages": MESSAGES,
            "tools": TOOLS,
            "response_format": FORM,
            "max_tokens": 400,
            "parallel_tool_calls": False,
            "logit_bias": begin(form, sign),
            **thinking(form),
        }
        for seed in range(6):
            if stream:
                with client.chat.completions.stream(**asked, seed=seed) as events:
                    for _ in events:
                        pass
                    choices = events.get_final_completion().choices
            else:
                choices = client.chat.completions.create(**asked, seed=seed, n=4).choices
            kinds = {check(choice) for choice in choices}
            if form in THINKING:
                assert all(choice.message.reasoning_content for choice in choices)
            if begin(form, sign):
                assert kinds == {"call" if sign > 0 else "answer"}
            found |= kinds
    assert "answer" in found
    assert "call" in found or form in ("llama", "harmony")


def test_forced_calls_beside_a_form(client, form):
    """C20: a call that has to come comes; with `none` there are no tools, and the answer has the form."""
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "response_format": FORM, "max_tokens": 400}
    asked |= {"parallel_tool_calls": False, **thinking(form)}
    for choice in client.chat.completions.create(**asked, tool_choice="required", seed=1, n=4).choices:
        assert check(choice) == "call"
    for choice in client.chat.completions.create(**asked, tool_choice="none", seed=1, n=4).choices:
        assert check(choice) == "answer"


def test_stop_strings_do_not_match_in_a_forced_call(client, form):
    """C8: every call has these characters, and is whole."""
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400, "stop": ["n", "a", "b", "{"]}
    asked |= {"parallel_tool_calls": False, **thinking(form)}
    for choice in client.chat.completions.create(**asked, tool_choice="required", seed=1, n=4).choices:
        assert (check(choice), choice.finish_reason) == ("call", "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_by_name_is_one_call(client, form, stream):
    """C21: with a tool's name there is one call of it and no other, whatever the model would like."""
    named = {"type": "function", "function": {"name": "a"}}
    asked = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "tool_choice": named, "max_tokens": 400}
    asked |= {"logit_bias": begin(form, 1), **thinking(form)}
    for seed in range(4):
        if stream:
            with client.chat.completions.stream(**asked, seed=seed) as events:
                for _ in events:
                    pass
                (choice,) = events.get_final_completion().choices
        else:
            (choice,) = client.chat.completions.create(**asked, seed=seed).choices
        (call,) = choice.message.tool_calls
        assert (call.function.name, choice.finish_reason) == ("a", "tool_calls")
        jsonschema.validate(json.loads(call.function.arguments), CALL)


# Harmony's reasoning cannot be turned off, and random weights never end it.
@pytest.mark.parametrize("form", [form for form in FORM_PARAMS if form.values != ("harmony",)], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_or_the_format_of_ollama(server, form, stream):
    """C20: `format` beside `tools`, with Ollama's own client."""
    thinks = {"think": False} if form in THINKING else {}
    with ollama.Client(server.url) as client:
        for seed in range(4):
            options = {"num_predict": 400, "seed": seed}
            asked = {"tools": TOOLS, "format": ANSWER, "options": options, **thinks}
            answer = client.chat("tiny", MESSAGES, stream=stream, **asked)
            pieces = list(answer) if stream else [answer]
            assert pieces[-1].done_reason == "stop"
            content = "".join(piece.message.content or "" for piece in pieces)
            calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
            for call in calls:
                jsonschema.validate(dict(call.function.arguments), CALL)
            if calls:
                assert not content
            else:
                jsonschema.validate(json.loads(content), ANSWER)
