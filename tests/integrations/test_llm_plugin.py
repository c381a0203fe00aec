"""integrations/llm-rocmforge with the real `llm`."""

import asyncio
import json

import jsonschema
import llm
import pytest
from calling_model import MAX_TOKENS, MESSAGES, SCHEMA, TEMPLATE, TOOLS
from click.testing import CliRunner
from conftest import MAX_MODEL_LEN
from llm.cli import cli
from llm.parts import ReasoningPart, ToolCallPart, ToolResultPart

HELLO = "Say hello to the world."
GREEDY = {"temperature": 0.0, "max_tokens": 20}
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 5000}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def run(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)))


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory, smollm2_path, template_path):
    """The model under two names, registered by the plugin's commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_USER_PATH", str(tmp_path_factory.mktemp("llm")))
        length = ("-o", "max_model_len", MAX_MODEL_LEN)
        assert run("rocmforge", "add", smollm2_path, "--name", "small", *length).output == "rocmforge/small\n"
        added = run("rocmforge", "add", smollm2_path, "--name", "calls", *length, "--chat-template", template_path)
        assert added.output == "rocmforge/calls\n"
        yield


@pytest.fixture
def small():
    return llm.get_model("rocmforge/small")


@pytest.fixture
def calls():
    return llm.get_model("rocmforge/calls")


def calling_history():
    """The conversation of tests/calling_model.py as `llm` has it."""
    made = []
    for message in MESSAGES:
        match message["role"]:
            case "user":
                made.append(llm.user(message["content"]))
            case "tool":
                part = ToolResultPart("get_weather", message["content"], message["tool_call_id"])
                made.append(llm.tool_message(part))
            case "assistant" if "tool_calls" in message:
                (call,) = message["tool_calls"]
                part = ToolCallPart("get_weather", call["function"]["arguments"], call["id"])
                made.append(llm.assistant(ReasoningPart(message["reasoning_content"]), part))
            case "assistant":
                made.append(llm.assistant(message["content"]))
    return made


def get_weather(city: str) -> str:
    """The weather"""
    return f"sunny in {city}"


def weather_tool():
    return llm.Tool("get_weather", "The weather", SCHEMA, get_weather)


def test_an_answer_is_streamed(small, say):
    expected = say([{"role": "user", "content": HELLO}])
    response = small.prompt(HELLO, **GREEDY)
    pieces = list(response)
    assert "".join(pieces) == expected.outputs[0].text
    assert len(pieces) > 2
    usage = response.usage()
    assert (usage.input, usage.output) == (len(expected.prompt_token_ids), 20)
    assert response.json() == {"finish_reason": "length", "stop_reason": None}


def test_a_conversation_has_its_turns(small, say):
    conversation = small.conversation()
    first = conversation.prompt(HELLO, system="You are brief.", **GREEDY).text()
    second = conversation.prompt("And now goodbye.", system="You are brief.", **GREEDY)
    turns = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": HELLO},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "And now goodbye."},
    ]
    assert second.text() == say(turns).outputs[0].text
    assert second.usage().details["cached_tokens"] > 0


def test_a_look_up_finds_the_loaded_engine(small):
    assert llm.get_model("rocmforge/small") is small


def test_a_tool_is_called(calls, say):
    """The call, the reasoning before it and the prompt are those of rocmforge itself."""
    expected = say(MESSAGES, MAX_TOKENS, tools=TOOLS, chat_template=TEMPLATE)
    response = calls.prompt(messages=calling_history(), tools=[weather_tool()], temperature=0.0, max_tokens=MAX_TOKENS)
    (call,) = response.tool_calls()
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    reasoning, called = response.messages()[0].parts
    assert reasoning.text == expected.outputs[0].message.reasoning_content
    assert (called.name, called.arguments) == (call.name, call.arguments)
    assert response.usage().input == len(expected.prompt_token_ids)


def test_a_chain_runs_the_tool(calls):
    options = {"temperature": 0.0, "max_tokens": MAX_TOKENS}
    chain = calls.chain(messages=calling_history(), tools=[weather_tool()], options=options)
    first, second, *_ = chain.responses()
    first.text()
    (result,) = second.prompt.tool_results
    assert (result.name, result.output) == ("get_weather", "sunny in Paris")


def test_a_call_that_is_cut_off_is_an_error(calls, say, engine):
    (whole,) = say(MESSAGES, MAX_TOKENS, tools=TOOLS, chat_template=TEMPLATE).outputs
    within = whole.text.index("Paris", whole.text.index("arguments"))
    short = len(engine.tokenize(whole.text[:within], add_special=False))
    response = calls.prompt(messages=calling_history(), tools=[weather_tool()], temperature=0.0, max_tokens=short)
    with pytest.raises(llm.ModelError, match="get_weather: got a call that was cut off"):
        response.text()


@pytest.mark.parametrize("name", ["small", "calls"])
def test_an_answer_has_the_form_of_a_schema(name):
    model = llm.get_model(f"rocmforge/{name}")
    text = model.prompt("Describe Paris.", schema=CITY, temperature=0.0, max_tokens=MAX_TOKENS).text()
    jsonschema.validate(json.loads(text), CITY)


def test_concurrent_prompts_are_answered_by_an_async_model(say):
    model = llm.get_async_model("rocmforge/small")
    questions = [HELLO, "Name a river.", "Name a city."]

    async def texts():
        return await asyncio.gather(*[model.prompt(question, **GREEDY).text() for question in questions])

    expected = [say([{"role": "user", "content": question}]).outputs[0].text for question in questions]
    assert asyncio.run(texts()) == expected


def test_wrong_options_are_named(small):
    with pytest.raises(llm.ModelError, match="temperature: got -1"):
        small.prompt(HELLO, temperature=-1.0).text()
    with pytest.raises(ValueError, match="does not support attachments"):
        small.prompt(HELLO, attachments=[llm.Attachment(type="image/png", content=b"")])


def test_the_program_answers(say):
    done = run("-m", "rocmforge/small", HELLO, "-o", "temperature", 0, "-o", "max_tokens", 20)
    assert done.output.strip() == say([{"role": "user", "content": HELLO}]).outputs[0].text.strip()


def test_commands_register_and_remove(smollm2_path):
    assert run("rocmforge", "add", "hf:some/Model-GGUF:Q8_0").output == "rocmforge/Model-GGUF:Q8_0\n"
    assert run("rocmforge", "add", smollm2_path).output == f"rocmforge/{smollm2_path.stem}\n"
    assert "rocmforge/Model-GGUF:Q8_0\thf:some/Model-GGUF:Q8_0\n" in run("rocmforge", "list").output
    for name in ("Model-GGUF:Q8_0", f"rocmforge/{smollm2_path.stem}"):
        assert run("rocmforge", "remove", name).exit_code == 0
    assert [line.split("\t")[0] for line in run("rocmforge", "list").output.splitlines()] == [
        "rocmforge/calls",
        "rocmforge/small",
    ]
    assert "got no registered model" in run("rocmforge", "remove", "other").output
    assert "got no file" in run("rocmforge", "add", "missing.gguf").output
    assert (
        "-o beams: expected an argument of rocmforge.LLM"
        in run("rocmforge", "add", smollm2_path, "-o", "beams", 1).output
    )
