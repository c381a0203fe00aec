"""LiteLLM against a real server, by each API of it that LiteLLM speaks: `make test-litellm`.

LiteLLM has an environment of its own; the server runs in another Python. What OpenAI's client gets is the oracle.
"""

import asyncio
import json
import os

# It reads this once, and asks the network otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import jsonschema
import litellm
import openai
import pytest
from calling_model import MAX_TOKENS, TEMPLATE, TOOLS, openai_form
from server_process import serving_demo

litellm.telemetry = False
litellm.suppress_debug_info = True

KEY = "secret"
HELLO = [{"role": "user", "content": "Say hello to the world."}]
GREEDY = {"temperature": 0.0, "max_tokens": 20}
# The path of each provider's API on the server.
PROVIDERS = {"openai": "/v1", "hosted_vllm": "/v1", "ollama_chat": "", "anthropic": ""}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("litellm")
    with serving_demo(folder, TEMPLATE, KEY, "--max-model-len", 1024) as server:
        yield server


@pytest.fixture(scope="module")
def official(server):
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def place(server, provider, model="small", key=KEY):
    return {"model": f"{provider}/{model}", "api_base": server.url + PROVIDERS[provider], "api_key": key}


@pytest.fixture(params=PROVIDERS)
def target(request, server):
    """Returns the arguments by which a call reaches the server through a provider."""
    return place(server, request.param)


@pytest.fixture
def expected(official):
    return official.chat.completions.create(model="small", messages=HELLO, **GREEDY)


def test_completion(target, expected):
    answer = litellm.completion(messages=HELLO, **GREEDY, **target)
    assert answer.choices[0].message.content == expected.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    usage = expected.usage
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (usage.prompt_tokens, 20)


async def streamed(target):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return [chunk async for chunk in await litellm.acompletion(messages=HELLO, **options, **GREEDY, **target)]


def test_stream(target, expected):
    chunks = asyncio.run(streamed(target))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == expected.choices[0].message.content
    assert len([piece for piece in pieces if piece]) > 2
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == ["length"]
    assert chunks[-1].usage.completion_tokens == 20


def test_tools(target):
    """The model calls by itself."""
    answer = litellm.completion(
        messages=openai_form(), tools=TOOLS, temperature=0.0, max_tokens=MAX_TOKENS, **target
    ).choices[0]
    (call,) = answer.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    assert answer.finish_reason == "tool_calls"


def test_forced_tool(server):
    """Ollama's API cannot force a call."""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    for provider in ("openai", "hosted_vllm", "anthropic"):
        target = place(server, provider)
        answer = litellm.completion(
            messages=HELLO, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, temperature=0.0, **target
        )
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        assert list(json.loads(call.function.arguments)) == ["city"]


def test_form(target):
    answer = litellm.completion(messages=HELLO, response_format=FORM, temperature=0.0, max_tokens=MAX_TOKENS, **target)
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)


def test_form_beside_tools(target):
    """The model may call or answer; the answer has the form."""
    options = {"tools": TOOLS, "response_format": FORM, "temperature": 0.0, "max_tokens": MAX_TOKENS, **target}
    answers = [litellm.completion(messages=each, **options).choices[0].message for each in (HELLO, openai_form())]
    if target["model"].startswith("anthropic/"):
        # It sends a form to Anthropic as a tool that has to be called, so there are no other calls.
        texts = [answer.content for answer in answers]
    else:
        texts = [answers[0].content]
        (call,) = answers[1].tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_embedding(server, official, provider):
    texts = ["A river.", "Bread."]
    answer = litellm.embedding(input=texts, encoding_format="float", **place(server, provider))
    expected = official.embeddings.create(model="small", input=texts, encoding_format="float")
    assert [each["embedding"] for each in answer.data] == [each.embedding for each in expected.data]


def test_text_completion(server, official):
    answer = litellm.text_completion(prompt="The sky is", **GREEDY, **place(server, "hosted_vllm"))
    expected = official.completions.create(model="small", prompt="The sky is", **GREEDY)
    assert answer.choices[0].text == expected.choices[0].text


def test_errors(server):
    for provider in PROVIDERS:
        with pytest.raises(litellm.AuthenticationError, match="a key that is not known"):
            litellm.completion(messages=HELLO, **place(server, provider, key="wrong"))
        with pytest.raises(litellm.NotFoundError, match="expected one of those that are served: small"):
            litellm.completion(messages=HELLO, **place(server, provider, model="large"))
        with pytest.raises(litellm.BadRequestError, match="temperature: got -3, expected a number"):
            litellm.completion(messages=HELLO, temperature=-3.0, **place(server, provider))
        with pytest.raises(litellm.BadRequestError, match="expected at most 1023; shorten"):
            litellm.completion(messages=[{"role": "user", "content": "word " * 2000}], **place(server, provider))
    with pytest.raises(litellm.BadRequestError, match="model: got one that does not rank"):
        litellm.rerank(query="a", documents=["b"], **place(server, "hosted_vllm"))
