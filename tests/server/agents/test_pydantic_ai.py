"""Agents of Pydantic AI over a real server, by OpenAI's chats and by OpenAI's responses."""

import json

import openai
import pytest
from calling_model import MAX_TOKENS, MESSAGES, TEMPLATE, TOOLS, parts, raw_text
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from rocmforge import LLM, SamplingParams
from server_process import serving

HELLO = "Say hello to the world."
SETTINGS = {"temperature": 0.0, "max_tokens": MAX_TOKENS}
APIS = [OpenAIChatModel, OpenAIResponsesModel]


class City(BaseModel):
    """A city, as an answer gives it."""

    name: str = Field(max_length=12)
    age: int = Field(ge=1, le=5000)


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, max_model_len=1024, num_threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("agents")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = ("--max-model-len", 1024, "--served-model-name", "small", "--chat-template", template)
    with serving(folder, smollm2_path, *arguments) as server:
        yield server


@pytest.fixture
async def provider(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield OpenAIProvider(openai_client=client)


@pytest.fixture(params=APIS)
def model(request, provider):
    return request.param("small", provider=provider, settings=SETTINGS)


def answer(llm):
    (output,) = llm.chat(
        [{"role": "system", "content": "Be short."}, {"role": "user", "content": HELLO}],
        SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0),
        chat_template=TEMPLATE,
    )
    return output


def history() -> list[ModelMessage]:
    """The conversation of `calling_model`, in which the model has called twice, as Pydantic AI's messages."""
    made: list[ModelMessage] = []
    for message in MESSAGES[:-1]:
        content = message["content"]
        match message["role"]:
            case "user":
                made.append(ModelRequest([UserPromptPart(content)]))
            case "tool":
                made.append(ModelRequest([ToolReturnPart(message["name"], content, message["tool_call_id"])]))
            case _ if calls := message.get("tool_calls"):
                made.append(
                    ModelResponse(
                        [
                            ThinkingPart(message["reasoning_content"], id="reasoning_content", provider_name="openai"),
                            *(
                                ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
                                for call in calls
                            ),
                        ],
                        provider_name="openai",
                    )
                )
            case _:
                made.append(ModelResponse([TextPart(content)]))
    return made


async def test_answer_and_usage(model, llm):
    result = await Agent(model, instructions="Be short.").run(HELLO)
    expected = answer(llm)
    assert result.output == expected.outputs[0].text
    usage = result.usage
    assert (usage.requests, usage.input_tokens) == (1, len(expected.prompt_token_ids))
    assert usage.output_tokens == len(expected.outputs[0].token_ids)
    assert result.response.finish_reason == expected.outputs[0].finish_reason


async def test_streamed_text(model, llm):
    async with Agent(model, instructions="Be short.").run_stream(HELLO) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    expected = answer(llm)
    assert "".join(pieces) == expected.outputs[0].text
    assert len(pieces) > 2
    assert result.usage.output_tokens == len(expected.outputs[0].token_ids)


@pytest.mark.parametrize("form", [NativeOutput, ToolOutput])
async def test_structured_output(model, form):
    result = await Agent(model, output_type=form(City)).run("Describe Rome.")
    assert isinstance(result.output, City)
    assert result.usage.requests == 1


async def test_structured_output_streamed(model):
    async with Agent(model, output_type=NativeOutput(City)).run_stream("Describe Rome.") as result:
        partial = [each async for each in result.stream_output(debounce_by=None)]
        assert await result.get_output() == partial[-1]
    assert isinstance(partial[-1], City)


async def test_function_tool(provider, llm):
    """The model calls by itself, is told the result and answers with it."""
    profile = OpenAIModelProfile(
        openai_chat_thinking_field="reasoning_content", openai_chat_send_back_thinking_parts="field"
    )
    agent = Agent(OpenAIChatModel("small", provider=provider, settings=SETTINGS, profile=profile))
    asked = []

    # The marker of a call is no token of this model, so that calls it makes by itself cannot be held to a schema.
    @agent.tool_plain(name="get_weather", description="The weather", strict=False)
    def get_weather(city: str) -> str:
        asked.append(city)
        return "sunny"

    result = await agent.run(MESSAGES[-1]["content"], message_history=history())
    reasoning, call = parts(raw_text(llm, tools=TOOLS))
    _, called, returned, last = result.new_messages()
    assert [part.content for part in called.parts if isinstance(part, ThinkingPart)] == [reasoning]
    assert [part.args_as_dict() for part in called.tool_calls] == [json.loads(call)["arguments"]]
    assert asked == ["Paris"]
    assert [part.content for part in returned.parts] == ["sunny"]
    assert (result.output, last.finish_reason) == ("Sunny.", "stop")
    assert result.usage.requests == 2


async def test_native_output_beside_a_tool(model):
    """C20: the model calls, is told the result, and its answer has the form."""
    agent = Agent(model, output_type=NativeOutput(City))
    asked = []

    @agent.tool_plain(name="get_weather", description="The weather", strict=False)
    def get_weather(city: str) -> str:
        asked.append(city)
        return "sunny"

    result = await agent.run("Describe Rome.")
    assert isinstance(result.output, City)
    assert set(asked) == {"Rome"}
    assert result.usage.requests > 1


async def test_tools_are_strict_unless_told_otherwise(provider):
    """Pydantic AI asks for that by itself, so the error has to say what to change."""
    agent = Agent(OpenAIChatModel("small", provider=provider))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        return city

    with pytest.raises(ModelHTTPError, match="leave out `strict`"):
        await agent.run(HELLO)


async def test_unknown_model(provider):
    for api in APIS:
        with pytest.raises(ModelHTTPError, match="expected one of those that are served: small") as refused:
            await Agent(api("large", provider=provider)).run(HELLO)
        assert (refused.value.status_code, refused.value.body["param"]) == (404, "model")


async def test_bad_parameter(model):
    with pytest.raises(ModelHTTPError, match="temperature: got -3, expected a number") as refused:
        await Agent(model).run(HELLO, model_settings={"temperature": -3.0})
    assert (refused.value.status_code, refused.value.body["param"]) == (400, "temperature")
