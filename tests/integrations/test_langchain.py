"""integrations/langchain-rocmforge with the real LangChain."""

import asyncio
import json

import pytest
from calling_model import MAX_TOKENS, SCHEMA, TEMPLATE, TOOLS, openai_form
from calling_model import MESSAGES as CALLING
from conftest import MAX_MODEL_LEN
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, convert_to_messages
from langchain_core.tools import tool
from langchain_rocmforge import ChatRocmForge
from pydantic import BaseModel, ConfigDict, Field
from rocmforge.errors import EngineDeadError, InvalidRequestError

HELLO = "Say hello to the world."
QUESTIONS = [
    HELLO,
    "Name a river.",
    "Name a city.",
    "What is bread?",
    "What is a house?",
    "Name a king.",
    "Sing.",
    "Go.",
]


class City(BaseModel):
    """A city, as an answer gives it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    age: int = Field(ge=1, le=5000)


@tool
def get_weather(city: str) -> str:
    """The weather"""
    return f"sunny in {city}"


@tool
def get_time(zone: str) -> str:
    """The time"""
    return f"noon in {zone}"


def model(path, **options):
    return ChatRocmForge(
        model=str(path), engine_options={"max_model_len": MAX_MODEL_LEN}, temperature=0.0, max_tokens=20, **options
    )


@pytest.fixture(scope="module")
def small(smollm2_path):
    model_ = model(smollm2_path)
    yield model_
    model_.close()


@pytest.fixture(scope="module")
def calls(smollm2_path):
    model_ = model(smollm2_path, chat_template=TEMPLATE)
    yield model_
    model_.close()


@pytest.fixture
def answers(say):
    """The texts of rocmforge itself."""
    return [say([{"role": "user", "content": question}]).outputs[0].text for question in QUESTIONS]


def calling_history():
    """The conversation of tests/calling_model.py as LangChain has it."""
    made = convert_to_messages(openai_form())
    for message, given in zip(made, CALLING, strict=True):
        if "reasoning_content" in given:
            message.additional_kwargs["reasoning_content"] = given["reasoning_content"]
    return made


def test_an_answer(small, say):
    expected = say([{"role": "user", "content": HELLO}])
    answer = small.invoke(HELLO)
    assert answer.content == expected.outputs[0].text
    prompt = len(expected.prompt_token_ids)
    usage = answer.usage_metadata
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (prompt, 20, prompt + 20)
    assert answer.response_metadata["finish_reason"] == "length"
    assert small.invoke(HELLO).usage_metadata["input_token_details"]["cache_read"] > 0
    assert small.invoke(HELLO, max_tokens=5).usage_metadata["output_tokens"] == 5
    assert small.get_num_tokens(HELLO) == 6


def test_a_conversation(small, say):
    turns = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": HELLO},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "And now goodbye."},
    ]
    assert small.invoke(turns).content == say(turns).outputs[0].text


def test_streams(small, answers):
    chunks = list(small.stream(HELLO))
    assert "".join(chunk.content for chunk in chunks) == answers[0]
    assert len(chunks) > 3

    async def streamed():
        return [chunk async for chunk in small.astream(HELLO)]

    assert "".join(chunk.content for chunk in asyncio.run(streamed())) == answers[0]


def test_a_stream_that_is_left_frees_its_request(small, assert_idle):
    for chunk in small.stream(HELLO, max_tokens=1000):
        if chunk.content:
            break
    assert_idle(small._engine)


def test_a_batch_runs_at_once(small, answers):
    """The engine had all requests in one step, and each answer is that of the request alone."""
    before = small._engine.stats()
    assert [answer.content for answer in small.batch(QUESTIONS)] == answers
    after = small._engine.stats()
    # One by one, each generated token would take a step.
    assert after.engine_steps - before.engine_steps < len(QUESTIONS) * 20 / 2
    assert [answer.content for answer in asyncio.run(small.abatch(QUESTIONS))] == answers
    good, bad = small.batch([HELLO, "word " * 3000], return_exceptions=True)
    assert good.content == answers[0]
    assert isinstance(bad, InvalidRequestError)


def test_calls_within_a_running_loop(small, answers):
    async def invoked():
        return small.invoke(HELLO).content, (await small.ainvoke(HELLO)).content

    assert asyncio.run(invoked()) == (answers[0], answers[0])


def test_a_tool_is_called(calls, say):
    expected = say(CALLING, MAX_TOKENS, tools=TOOLS, chat_template=TEMPLATE)
    bound = calls.bind_tools(TOOLS, max_tokens=MAX_TOKENS)
    answer = bound.invoke(calling_history())
    (call,) = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    assert answer.additional_kwargs["reasoning_content"] == expected.outputs[0].message.reasoning_content
    assert answer.usage_metadata["input_tokens"] == len(expected.prompt_token_ids)
    result = get_weather.invoke(call)
    assert result.content == "sunny in Paris"
    assert isinstance(bound.invoke([*calling_history(), answer, result], max_tokens=5), AIMessage)


@pytest.mark.parametrize("choice", ["any", "get_time", {"type": "function", "function": {"name": "get_time"}}])
def test_a_call_is_forced(calls, choice):
    bound = calls.bind_tools([get_weather, get_time], tool_choice=choice, parallel_tool_calls=False)
    (call,) = bound.invoke(HELLO, max_tokens=200).tool_calls
    assert call["name"] in ("get_weather", "get_time") if choice == "any" else call["name"] == "get_time"
    assert isinstance(call["args"]["zone" if call["name"] == "get_time" else "city"], str)


def test_no_tool_is_offered(calls, say):
    expected = say([{"role": "user", "content": HELLO}], chat_template=TEMPLATE)
    assert calls.bind_tools([get_weather], tool_choice="none").invoke(HELLO).content == expected.outputs[0].text
    with pytest.raises(ValueError, match="tool_choice: got 'get_sun', expected auto, none, any or one of get_weather"):
        calls.bind_tools([get_weather], tool_choice="get_sun")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(calls, method):
    bound = calls.model_copy(update={"max_tokens": 200}).with_structured_output(City, method=method)
    assert isinstance(bound.invoke("Describe Paris."), City)


def test_structured_output_of_a_schema(small):
    bound = small.with_structured_output({"title": "City", **SCHEMA, "additionalProperties": False}, include_raw=True)
    made = bound.invoke("Describe Paris.")
    assert made["parsed"] == json.loads(made["raw"].content)
    assert made["parsing_error"] is None
    with pytest.raises(ValueError, match="got method='json_mode'"):
        small.with_structured_output(City, method="json_mode")


def test_structured_output_that_is_cut_off(small):
    short = small.model_copy(update={"max_tokens": 3})
    made = short.with_structured_output(City, include_raw=True).invoke("Describe Paris.")
    assert made["parsed"] is None
    assert isinstance(made["parsing_error"], OutputParserException)
    with pytest.raises(OutputParserException):
        short.with_structured_output(City).invoke("Describe Paris.")


def test_wrong_arguments(small, smollm2_path):
    with pytest.raises(InvalidRequestError, match="temperature: got -1"):
        small.invoke(HELLO, temperature=-1.0)
    with pytest.raises(TypeError, match="beams"):
        small.invoke(HELLO, beams=2)
    closed = model(smollm2_path)
    closed.close()
    with pytest.raises(EngineDeadError):
        asyncio.run(closed.ainvoke(HELLO))
