"""Reasoning of a bounded length, and structured answers after reasoning, through each API with its own client.

The model's weights are random: it would think for ever, and its answer would have no form.
"""

import json

import anthropic
import jsonschema
import ollama
import openai
import pytest
from marked_models import model_of
from server_process import serving

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer", "minimum": 0, "maximum": 99}, "sure": {"type": "boolean"}},
    "required": ["number", "sure"],
    "additionalProperties": False,
}
TOOL = {"name": "note", "description": "Takes a note", "input_schema": SCHEMA}
FUNCTION = {"name": "note", "description": "Takes a note", "parameters": SCHEMA}
BAD_SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}, "required": ["a"]}
MESSAGES = [{"role": "user", "content": "How many?"}]
BUDGET = 12


@pytest.fixture(scope="module", params=["hermes", pytest.param("glm", marks=pytest.mark.deep), "harmony"])
def server(request, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with serving(folder, model_of(request.param, folder, tiny_model), "--served-model-name", "tiny") as server:
        yield server


@pytest.fixture(scope="module")
def openai_client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def messages(server):
    """`messages` of Anthropic's client."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client.messages


@pytest.fixture(scope="module")
def ollama_client(server):
    client = ollama.Client(server.url)
    yield client
    client._client.close()


def count(server, text):
    return server.client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["count"]


def check(text):
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("budget", [0, 1, BUDGET])
def test_chat_budget(openai_client, server, budget):
    """No reasoning is longer than its budget, and the answer follows it."""
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 60, "seed": 4, "n": 3}
    free = openai_client.chat.completions.create(**asked, extra_body={"thinking_token_budget": 60}).choices
    assert "length" in {choice.finish_reason for choice in free}
    for choice in openai_client.chat.completions.create(**asked, extra_body={"thinking_token_budget": budget}).choices:
        reasoning = getattr(choice.message, "reasoning_content", None) or ""
        # A text may be more tokens anew than it was, where it is cut within a character.
        assert bool(reasoning) == (budget > 0) or not reasoning.strip()
        assert choice.message.content
    stream = openai_client.chat.completions.create(
        **asked | {"n": 1}, stream=True, logprobs=True, extra_body={"thinking_token_budget": budget}
    )
    tokens = [
        one.token for chunk in stream for choice in chunk.choices if choice.logprobs for one in choice.logprobs.content
    ]
    closing = [index for index, token in enumerate(tokens) if token in ("</think>", "<|end|>")]
    assert closing[0] <= budget


@pytest.mark.parametrize("stream", [False, True])
def test_chat_form_behind_reasoning(openai_client, stream):
    asked = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 200,
        "seed": 5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}},
        "extra_body": {"thinking_token_budget": BUDGET},
    }
    if stream:
        with openai_client.chat.completions.stream(**asked) as events:
            for _ in events:
                pass
            (choice,) = events.get_final_completion().choices
    else:
        (choice,) = openai_client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "stop"
    check(choice.message.content)
    assert choice.message.reasoning_content


@pytest.mark.parametrize(
    ("form", "check_text"),
    [
        ({"regex": "(yes|no)/[0-9]{3}"}, lambda text: text[:2] in ("ye", "no") and text[-3:].isdigit()),
        ({"choice": ["left", 'a "right" turn']}, lambda text: text in ("left", 'a "right" turn')),
        ({"grammar": 'start: "<" /[a-c]{4}/ ">"'}, lambda text: len(text) == 6),
        ({"json_object": True, "disable_any_whitespace": True}, lambda text: text.startswith("{")),
    ],
)
def test_chat_kinds_of_form_behind_reasoning(openai_client, form, check_text):
    (choice,) = openai_client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=300,
        seed=2,
        extra_body={"structured_outputs": form, "thinking_token_budget": 5},
    ).choices
    assert check_text(choice.message.content), choice.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_message_budget_and_tool(messages, stream):
    """Anthropic's way to say how long the model may think, with a tool that has to be used."""
    asked = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 400,
        "thinking": {"type": "enabled", "budget_tokens": BUDGET},
        "tools": [TOOL],
        "extra_body": {"temperature": 0},
    }
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "note"}):
        choice |= {"disable_parallel_tool_use": True}
        if stream:
            with messages.stream(**asked, tool_choice=choice) as events:
                message = events.get_final_message()
        else:
            message = messages.create(**asked, tool_choice=choice)
        # Before the end of its reasoning the model is free, and may open another channel within it.
        thinking, *_, use = message.content
        assert (thinking.type, use.type, use.name) == ("thinking", "tool_use", "note")
        jsonschema.validate(use.input, SCHEMA)
        assert message.stop_reason == "tool_use"


def test_responses(openai_client, request):
    """The form of an answer and forced calls by the newer API."""
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
    asked = {"model": "tiny", "input": "How many?", "max_output_tokens": 300}
    response = openai_client.responses.create(**asked, text={"format": form})
    assert response.status in ("completed", "incomplete")
    if response.status == "completed":
        answer = response.output_text
        if request.node.callspec.params["server"] == "harmony":
            # Before the end of its reasoning the model is free, and may open another channel within it, which reads as
            # a message ahead of the answer.
            answer = answer[answer.rfind("{") :]
        check(answer)
        assert response.text.format.schema_ == SCHEMA
    with pytest.raises(openai.BadRequestError, match=r"text\.format\.schema"):
        openai_client.responses.create(**asked, text={"format": {"type": "json_schema", "name": "answer"}})


def test_ollama(ollama_client):
    """The format, the reasoning and the calls of Ollama's API."""
    options = {"num_predict": 300, "seed": 1}
    answer = ollama_client.chat("tiny", MESSAGES, format=SCHEMA, options=options)
    if answer.done_reason == "stop":
        check(answer.message.content)
    text = ollama_client.generate("tiny", "How many?", format=SCHEMA, raw=True, options=options)
    assert text.done_reason == "stop"
    check(text.response)
    reasoning = ollama_client.chat("tiny", MESSAGES, think=True, options={"num_predict": 20, "seed": 1})
    assert reasoning.message.thinking
    assert not reasoning.message.content
    capabilities = ollama_client.show("tiny").capabilities
    assert {"completion", "tools", "thinking"} <= set(capabilities)
    streamed = list(ollama_client.chat("tiny", MESSAGES, tools=[{"type": "function", "function": FUNCTION}],
                                       stream=True, options=options))  # fmt: skip
    assert streamed[-1].done


def test_every_effort_of_ollama(server, openai_client):
    """C19: `think` takes a level, also the highest, which is what OpenAI's API calls the effort."""
    for level in ("low", "max"):
        body = {"model": "tiny", "messages": MESSAGES, "think": level, "stream": False}
        options = {"num_predict": 20, "temperature": 0, "repeat_penalty": 1.0}
        answer = server.client.post("/api/chat", json=body | {"options": options})
        assert answer.status_code == 200, answer.text
        (choice,) = openai_client.chat.completions.create(
            model="tiny", messages=MESSAGES, reasoning_effort=level, max_tokens=20, temperature=0.0
        ).choices
        assert answer.json()["message"]["thinking"] == choice.message.reasoning_content != ""
    refused = server.client.post("/api/chat", json=body | {"think": "most"})
    assert refused.status_code == 400
    assert "think: got 'most'" in refused.json()["error"]


def test_templates_with_tools(server):
    """Descriptions of tools are counted and shown with the rest of a prompt."""
    body = {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]}
    text = server.client.post("/apply_template", json=body).json()["prompt"]
    assert "Takes a note" in text
    with_tools = server.client.post("/tokenize", json=body).json()["count"]
    assert with_tools > server.client.post("/tokenize", json={"messages": MESSAGES}).json()["count"]


def test_models_for_anthropic(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        (model,) = client.models.list()
        assert (model.id, model.type) == ("tiny", "model")
        assert client.models.retrieve("tiny") == model


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [FUNCTION]}, "tool_choice"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        (
            {"tool_choice": "required", "tools": [FUNCTION | {"parameters": BAD_SCHEMA, "strict": True}]},
            "tool_choice",
        ),
    ],
)
def test_refusals(server, body, param):
    tools = [{"type": "function", "function": function} for function in body.get("tools", [])]
    body = {"messages": MESSAGES, "max_tokens": 5, **body, **({"tools": tools} if tools else {})}
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
