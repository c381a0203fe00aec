"""Frameworks and SDKs that people write agents with, against a real server: `make test-sdks`.

Each asks for a tool call, for structured output, and for structured output while tools are offered. They have an
environment of their own; the server runs in another Python.
"""

import asyncio
import lzma
import os
import subprocess
from pathlib import Path
from typing import Annotated

import agents
import anthropic
import cohere
import instructor
import jsonschema
import openai
import pytest
from calling_model import MAX_TOKENS, SCHEMA, TEMPLATE, openai_form
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict, Field
from server_process import PYTHON, serving, serving_demo

TESTS = Path(__file__).parents[1]
KEY = "secret"
HELLO = "Say hello to the world."
GREEDY = {"temperature": 0.0, "max_tokens": MAX_TOKENS}


class City(BaseModel):
    """A city, as an answer gives it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    age: int = Field(ge=1, le=5000)


@tool
def get_weather(city: str) -> str:
    """The weather."""
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdks")
    with serving_demo(folder, TEMPLATE, KEY, "--max-model-len", 2048) as server:
        yield server


@pytest.fixture(scope="module")
def plain(server):
    """The greedy answer of OpenAI's own client, which the frameworks must show as well."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        answer = client.chat.completions.create(model="small", messages=[{"role": "user", "content": HELLO}], **GREEDY)
    return answer.choices[0].message.content


@pytest.fixture(params=["openai", "responses", "anthropic"])
def chain(request, server):
    """LangChain's chat models, by three APIs of the server."""
    if request.param == "anthropic":
        return ChatAnthropic(model_name="small", base_url=server.url, api_key=KEY, max_retries=0, **GREEDY)
    return ChatOpenAI(
        model="small",
        base_url=f"{server.url}/v1",
        api_key=KEY,
        max_retries=0,
        use_responses_api=request.param == "responses",
        **GREEDY,
    )


def test_langchain_answers_and_streams(chain, plain):
    assert chain.invoke(HELLO).text == plain
    assert "".join(chunk.text for chunk in chain.stream(HELLO)) == plain


def test_langchain_calls_a_tool(chain):
    (call,) = chain.bind_tools([get_weather]).invoke(openai_form()).tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    (call,) = chain.bind_tools([get_weather], tool_choice="get_weather").invoke(HELLO).tool_calls
    assert call["name"] == "get_weather"
    jsonschema.validate(call["args"], SCHEMA)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gives_structured_output(chain, method):
    assert isinstance(chain.with_structured_output(City, method=method).invoke(HELLO), City)


def test_langchain_gives_structured_output_beside_tools(chain):
    """The model may call or answer; the answer has the schema."""
    bound = chain.bind_tools([get_weather], strict=True, response_format=City)
    City.model_validate_json(bound.invoke(HELLO).text)
    (call,) = bound.invoke(openai_form()).tool_calls
    assert call["name"] == "get_weather"


@pytest.fixture(scope="module")
def llama(server):
    """LlamaIndex's client of servers that are like OpenAI's."""
    return OpenAILike(
        model="small",
        api_base=f"{server.url}/v1",
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
        **GREEDY,
    )


def test_llama_index(llama, plain):
    message = ChatMessage(role="user", content=HELLO)
    assert llama.chat([message]).message.content == plain
    assert "".join(chunk.delta for chunk in llama.stream_chat([message])) == plain
    weather = FunctionTool.from_defaults(fn=lambda city: f"sunny in {city}", name="get_weather", fn_schema=Weather)
    answer = llama.chat_with_tools([weather], user_msg=HELLO, tool_required=True, allow_parallel_tool_calls=False)
    (call,) = llama.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather"
    jsonschema.validate(call.tool_kwargs, SCHEMA)
    assert isinstance(llama.as_structured_llm(City).chat([message]).raw, City)
    (both,) = (llama.chat_with_tools([weather], user_msg=HELLO, response_format=form()),)
    City.model_validate_json(both.message.content)


class Weather(BaseModel):
    """Arguments of the tool."""

    city: str


def form():
    """Returns the schema of `City` as OpenAI's API takes it."""
    schema = City.model_json_schema()
    return {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_instructor(server, mode):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        ask = instructor.from_openai(client, mode=mode).chat.completions.create
        messages = [{"role": "user", "content": HELLO}]
        city = ask(model="small", messages=messages, response_model=City, max_retries=0, **GREEDY)
    assert isinstance(city, City)


def test_instructor_by_responses_and_messages(server):
    messages = [{"role": "user", "content": HELLO}]
    asked = {"model": "small", "response_model": City, "max_retries": 0, "extra_body": {"temperature": 0.0}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        ask = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS).responses.create
        assert isinstance(ask(input=messages, max_output_tokens=MAX_TOKENS, **asked), City)
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        ask = instructor.from_anthropic(client, mode=instructor.Mode.ANTHROPIC_TOOLS).messages.create
        assert isinstance(ask(messages=messages, max_tokens=MAX_TOKENS, **asked), City)


class TestAgents:
    """OpenAI's agents, by chats and by responses."""

    @pytest.fixture(params=[agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel])
    def run(self, request, server):
        """Returns a function that runs one agent; each has a client of its own, which belongs to its event loop."""
        agents.set_tracing_disabled(True)

        def run(settings=None, **options):
            client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)
            model = request.param(model="small", openai_client=client)
            settings = agents.ModelSettings(**GREEDY, **settings or {})
            agent = agents.Agent(name="one", model=model, model_settings=settings, **options)
            return asyncio.run(agents.Runner.run(agent, HELLO, max_turns=3))

        return run

    def test_text(self, run, plain):
        assert run().final_output == plain

    def test_a_tool_is_called_and_its_result_is_the_answer(self, run):
        called = []

        @agents.function_tool
        def get_weather(city: Annotated[str, "A city"]) -> str:
            """The weather."""
            called.append(city)
            return "sunny"

        options = {"tools": [get_weather], "tool_use_behavior": "stop_on_first_tool"}
        result = run(settings={"tool_choice": "get_weather", "parallel_tool_calls": False}, **options)
        assert result.final_output == "sunny"
        assert len(called) == 1

    def test_structured_output_without_and_beside_tools(self, run):
        @agents.function_tool
        def get_weather(city: str) -> str:
            """The weather."""
            return city

        assert isinstance(run(output_type=City).final_output, City)
        assert isinstance(run(output_type=City, tools=[get_weather]).final_output, City)


def test_cohere_ranks(tmp_path):
    """Cohere's client against a model that ranks: the best documents first, as the server's own path has them."""
    encoder, path = tmp_path / "encoder.gguf", tmp_path / "ranker.gguf"
    encoder.write_bytes(lzma.decompress((TESTS / "data/embedding/modern_bert.gguf.xz").read_bytes()))
    make = """
import sys
from pathlib import Path
from tiny_rankers import ranker
ranker(*map(Path, sys.argv[1:]), "modern_bert_cls")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([PYTHON, "-c", make, encoder, path], check=True, env=environment)
    query, documents = "What is a river?", ["A kind of bread.", "Water.", "Numbers: 1 2 3"]
    with serving(tmp_path, path, "--served-model-name", "rank", "--api-key", KEY, headers={"x-api-key": KEY}) as server:
        own = server.client.post("/v1/rerank", json={"query": query, "documents": documents}).json()["results"]
        for client in (cohere.ClientV2(KEY, base_url=server.url), cohere.Client(KEY, base_url=server.url)):
            answer = client.rerank(model="rank", query=query, documents=documents, top_n=2)
            assert [(one.index, one.relevance_score) for one in answer.results] == [
                (one["index"], one["relevance_score"]) for one in own[:2]
            ]
