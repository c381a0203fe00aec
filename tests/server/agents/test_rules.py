"""Rules for replies: forced calls, structured output after reasoning, and reasoning of a bounded length.

The model's weights are random, so that it keeps to no form by itself. Its vocabulary has the markers of the form that
the chat template of a real model shows. Arguments are checked by jsonschema.
"""

import json

import jsonschema
import openai
import pytest
from marked_models import FIRST, FORM_PARAMS, FORMS, model_of
from random_schemas import GemmaSchemas, Schemas
from server_process import serving

THINKING = ["hermes", "glm", "gemma4", "harmony"]
BEGIN = ("<tool_call>", "[TOOL_CALLS]", "<|tool_call>")
MESSAGES = [{"role": "user", "content": "Go on."}]


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
    """OpenAI's client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def schema_of(seed, form):
    """The schema of a tool's arguments. Where texts stand between tags, random weights would never end a free one."""
    kinds = GemmaSchemas(seed) if form == "gemma4" else Schemas(seed)
    kinds.definitions.clear()
    if form in ("qwen-xml", "glm"):
        properties = {
            "count": kinds.integer(0),
            "unit": {"type": "string", "enum": ["metre", "foot", 'inch "small"']},
            "nested": kinds.object(2),
            "list": kinds.array(2),
            "sure": {"type": "boolean"},
        }
        names = kinds.random.sample(sorted(properties), 3)
        schema = {"type": "object", "properties": {name: properties[name] for name in names}, "required": names[:2]}
    else:
        schema = kinds.object(0)
    return {**schema, "$defs": kinds.definitions}


def tool(name, schema, **others):
    return {"type": "function", "function": {"name": name, "description": "A tool", "parameters": schema, **others}}


def likely_calls(form):
    """The bias of the token that begins a call; none for a form without one."""
    _, control, text = FORMS[form]
    begin = {FIRST - index: marker for index, marker in enumerate([*control, *text])}
    return {str(token): 5 for token, marker in begin.items() if marker in BEGIN}


def check_call(call, schemas):
    """Arguments fit the schema of the tool that is called."""
    value = json.loads(call.function.arguments)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schemas[call.function.name], format_checker=checker).validate(value)


@pytest.mark.parametrize("stream", [False, True])
def test_required_calls(client, form, stream):
    """C8: there is a call, whatever the model wants, and nothing else but reasoning. No stop string cuts it."""
    for seed in range(4):
        schemas = {f"tool_{index}": schema_of(10 * seed + index, form) for index in range(2)}
        asked = {
            "model": "tiny",
            "messages": MESSAGES,
            "tools": [tool(name, schema) for name, schema in schemas.items()],
            "seed": seed,
            "max_tokens": 2000,
            "parallel_tool_calls": False,
            "tool_choice": "required",
            "extra_body": {"thinking_token_budget": 20} if form in THINKING else {},
        }
        if seed % 2:
            asked["tool_choice"] = {"type": "function", "function": {"name": "tool_1"}}
        if seed > 1:
            asked["stop"] = ['"', "}", "tool_", ":"]
        if stream:
            with client.chat.completions.stream(**asked) as events:
                for _ in events:
                    pass
                (choice,) = events.get_final_completion().choices
        else:
            (choice,) = client.chat.completions.create(**asked).choices
        assert choice.finish_reason == "tool_calls", choice
        assert not choice.message.content
        (call,) = choice.message.tool_calls
        check_call(call, schemas)
        assert seed % 2 == 0 or call.function.name == "tool_1"
        assert (form in THINKING) == bool(getattr(choice.message, "reasoning_content", None))


def test_several_calls(client, form):
    """Where the form has room for it the model may call again; `parallel_tool_calls: false` says that it may not."""
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    asked = {
        "model": "tiny",
        "messages": MESSAGES,
        "tools": [tool("count", schema)],
        "tool_choice": "required",
        "max_tokens": 400,
        "n": 8,
        "logit_bias": likely_calls(form),
        "extra_body": {"thinking_token_budget": 5} if form in THINKING else {},
    }
    choices = [choice for seed in range(4) for choice in client.chat.completions.create(**asked, seed=seed).choices]
    for choice in choices:
        calls = choice.message.tool_calls or []
        # The last call of those that came to the limit may be cut off.
        for call in calls if choice.finish_reason == "tool_calls" else calls[:-1]:
            check_call(call, {"count": schema})
    counts = [len(choice.message.tool_calls or []) for choice in choices]
    assert (max(counts) > 1) == (form not in ("llama", "harmony")), counts
    alone = client.chat.completions.create(**asked, seed=1, parallel_tool_calls=False).choices
    assert {len(choice.message.tool_calls) for choice in alone if choice.finish_reason == "tool_calls"} == {1}


SHORT = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
NAMES = ("look", "count", "forget")


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def whole(client, asked):
    return client.chat.completions.create(**asked)


def streamed(client, asked):
    """A completion that the client gathers itself, also of an answer that came to its limit."""
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
        try:
            for _ in events:
                pass
            return events.get_final_completion()
        except openai.LengthFinishReasonError as error:
            return error.completion


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["required", "auto"])
def test_allowed_tools(client, form, mode, stream):
    """Only some tools are called, and all of them stay in the prompt."""
    asked = {
        "model": "tiny",
        "messages": MESSAGES,
        "tools": [tool(name, SHORT) for name in NAMES],
        "max_tokens": 400,
        "parallel_tool_calls": False,
        "logit_bias": likely_calls(form) or {str(ord("{") - ord("!")): 5},
        "extra_body": {"thinking_token_budget": 5} if form in THINKING else {},
    }
    called = []
    for seed in range(16):
        names = ("look",) if seed % 2 else ("forget", "count")
        chosen = {"seed": seed, "tool_choice": allowed(mode, *names)}
        asks = streamed if stream else whole
        completion = asks(client, asked | chosen)
        (choice,) = completion.choices
        if choice.finish_reason == "tool_calls":
            (call,) = choice.message.tool_calls
            check_call(call, dict.fromkeys(names, SHORT))
            called.append(call.function.name)
        else:
            assert (mode, choice.message.tool_calls or []) == ("auto", [])
    assert "look" in called
    assert {"forget", "count"} & {*called}
    every = client.chat.completions.create(**asked | {"max_tokens": 20}, tool_choice=mode)
    assert every.usage.prompt_tokens == completion.usage.prompt_tokens
    assert every.usage.prompt_tokens_details.cached_tokens > completion.usage.prompt_tokens - 20


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["required", "auto"])
def test_allowed_functions_of_responses(client, form, mode, stream):
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "look"}]}
    asked = {
        "model": "tiny",
        "input": "Go on.",
        "tools": [{"type": "function", **tool(name, SHORT, strict=False)["function"]} for name in NAMES],
        "tool_choice": choice,
        "max_output_tokens": 200,
        "parallel_tool_calls": False,
    }
    if stream:
        with client.responses.stream(**asked) as events:
            for event in events:
                if event.type in ("response.completed", "response.incomplete"):
                    response = event.response
    else:
        response = client.responses.create(**asked)
    assert response.tool_choice.model_dump() == choice
    calls = [item for item in response.output if item.type == "function_call"]
    assert {call.name for call in calls} <= {"look"}
    if mode == "required" and form != "harmony":
        (call,) = calls
        jsonschema.validate(json.loads(call.arguments), SHORT)


def test_allowed_tools_that_are_no_tools(client):
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5, "tools": [tool("look", SHORT)]}
    for mode in ("auto", "required"):
        with pytest.raises(openai.BadRequestError, match="got the tool 'other', expected tools among look"):
            client.chat.completions.create(**asked, tool_choice=allowed(mode, "look", "other"))
        functions = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "other"}]}
        with pytest.raises(openai.BadRequestError, match=r"tool_choice: got .*, expected tools beside it"):
            client.responses.create(model="tiny", input="Go on.", tool_choice=functions)
    for choice, match in (
        (allowed("none", "look"), "tool_choice.*: got 'none', expected 'auto' or 'required'"),
        (allowed("auto"), "tool_choice.*: .* at least 1 item"),
        ({"type": "custom"}, r"tool_choice\.custom: it is missing"),
        ({"type": "other"}, "tool_choice: got .*, expected 'auto', 'none', 'required', or an object of the type"),
        ("always", "tool_choice: got 'always', expected 'auto', 'none', 'required'"),
    ):
        with pytest.raises(openai.BadRequestError, match=match):
            client.chat.completions.create(**asked, tool_choice=choice)


def test_strict_tools(client, form):
    """A call that the model makes by itself fits the schema of a strict tool; without a call the answer is free."""
    schema = schema_of(7, form)
    asked = {
        "model": "tiny",
        "messages": MESSAGES,
        "tools": [tool("strict_tool", schema, strict=True)],
        "max_tokens": 800,
        "n": 12,
        "seed": 3,
        "extra_body": {"thinking_token_budget": 5} if form in THINKING else {},
    }
    # Random weights seldom begin a call.
    asked["logit_bias"] = likely_calls(form) or {str(ord("{") - ord("!")): 5}
    calls = free = 0
    for choice in client.chat.completions.create(**asked).choices:
        if choice.finish_reason == "tool_calls":
            calls += 1
            check_call(choice.message.tool_calls[0], {"strict_tool": schema})
        else:
            free += 1
    assert calls > 0, (calls, free)
