"""Reasoning and calls through each API, with its own client: what the real small model writes, split.

The expected parts come from the model's text itself, taken apart by an expression of this form alone.
"""

import json

import anthropic
import openai
import pytest
from calling_model import MAX_TOKENS, MESSAGES, SCHEMA, TEMPLATE, TOOLS, openai_form, parts, raw_text
from rocmforge import LLM
from server_process import serving


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, max_model_len=1024, num_threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def said(llm):
    """The reasoning and the JSON of the call."""
    return parts(raw_text(llm, tools=TOOLS))


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calling")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = ("--max-model-len", 1024, "--served-model-name", "small", "--chat-template", template)
    with serving(folder, smollm2_path, *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def chat(server):
    """`chat.completions` of OpenAI's client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.chat.completions


@pytest.fixture(scope="module")
def messages(server):
    """`messages` of Anthropic's client."""
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client.messages


ASK = {"model": "small", "messages": openai_form(), "max_tokens": MAX_TOKENS, "temperature": 0.0}


@pytest.mark.parametrize("stream", [False, True])
def test_chat(chat, said, stream):
    reasoning_text, call = said
    if stream:
        content, reasoning, arguments, name, reason = "", "", "", None, None
        pieces = 0
        for chunk in chat.create(tools=TOOLS, stream=True, **ASK):
            (choice,) = chunk.choices
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for piece in choice.delta.tool_calls or []:
                assert piece.index == 0
                assert (piece.id is None) == (piece.function.name is None) == (name is not None)
                name = name or piece.function.name
                arguments += piece.function.arguments or ""
                pieces += 1
            reason = choice.finish_reason or reason
        # Arguments come while they are written.
        assert pieces > 2
    else:
        (choice,) = chat.create(tools=TOOLS, **ASK).choices
        (found,) = choice.message.tool_calls
        content, reasoning, reason = choice.message.content, choice.message.reasoning_content, choice.finish_reason
        name, arguments = found.function.name, found.function.arguments
        assert found.id
    assert (reasoning, reason) == (reasoning_text, "tool_calls")
    assert not content
    assert {"name": name, "arguments": json.loads(arguments)} == json.loads(call)


def test_chat_without_tools(chat, llm):
    """A call that nobody asked for stays part of the answer."""
    reasoning_text, call = parts(raw_text(llm))
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        (choice,) = chat.create(**ASK, **options).choices
        assert choice.message.content == f"<tool_call>\n{call}\n</tool_call>"
        assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
        assert choice.message.reasoning_content == reasoning_text


def test_chat_helper(chat, said):
    """Gathers a stream by means of the client itself."""
    with chat.stream(tools=TOOLS, **ASK) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == json.loads(said[1])["arguments"]


def test_chat_effort(chat, llm):
    """The template knows whether to think, but not how much."""
    call = raw_text(llm, tools=TOOLS, chat_template_kwargs={"enable_thinking": False})
    (choice,) = chat.create(tools=TOOLS, reasoning_effort="none", **ASK).choices
    (found,) = choice.message.tool_calls
    assert call.startswith("<tool_call>")
    assert found.function.arguments in call
    assert not hasattr(choice.message, "reasoning_content")


def test_chat_calls_that_must_be(chat):
    """The model is not asked whether it likes to call, but for the arguments."""
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        (answer,) = chat.create(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, **ASK).choices
        (call,) = answer.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        assert answer.finish_reason == "tool_calls"
        assert not hasattr(answer.message, "reasoning_content")


def test_chat_needs_markers_that_are_tokens(chat):
    """Where a call that is not forced could begin anywhere in a text, its arguments cannot be held to a schema."""
    strict = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}]
    with pytest.raises(openai.BadRequestError, match=r"tools: .* no single token for <tool_call>.* leave out `strict`"):
        chat.create(tools=strict, **ASK)
    some = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    allowed = {"type": "allowed_tools", "allowed_tools": some}
    with pytest.raises(openai.BadRequestError, match=r"tool_choice: .* token for <tool_call>.* mode `required`, or"):
        chat.create(tools=TOOLS, tool_choice=allowed, **ASK)
    with pytest.raises(openai.BadRequestError, match=r"thinking_token_budget: .* no single token for </think>"):
        chat.create(**ASK, extra_body={"thinking_token_budget": 10})


def anthropic_form():
    """Writes the same conversation in blocks, as a client keeps it."""
    made = []
    for message in MESSAGES:
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            made.append({"role": "user", "content": [block]})
            continue
        blocks = []
        if reasoning_text := message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": reasoning_text, "signature": ""})
        if message["content"]:
            blocks.append({"type": "text", "text": message["content"]})
        for call in message.get("tool_calls", []):
            function = call["function"]
            blocks.append(
                {"type": "tool_use", "id": call["id"], "name": function["name"], "input": function["arguments"]}
            )
        made.append({"role": message["role"], "content": blocks})
    return made


FUNCTION = TOOLS[0]["function"]
TOOL = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": SCHEMA}
MESSAGE = {
    "model": "small",
    "messages": anthropic_form(),
    "max_tokens": MAX_TOKENS,
    "extra_body": {"temperature": 0.0},
}


@pytest.mark.parametrize("stream", [False, True])
def test_message(messages, said, stream):
    reasoning_text, call = said
    if stream:
        with messages.stream(tools=[TOOL], **MESSAGE) as events:
            message = events.get_final_message()
    else:
        message = messages.create(tools=[TOOL], **MESSAGE)
    thinking, use = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", reasoning_text)
    assert (use.type, {"name": use.name, "arguments": use.input}) == ("tool_use", json.loads(call))
    assert message.stop_reason == "tool_use"


def test_message_stream_of_blocks(messages, said):
    """Each block begins, brings its own kind of pieces, and ends before the next one."""
    events = list(messages.create(tools=[TOOL], stream=True, **MESSAGE))
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    at = kinds.index("content_block_stop")
    first, second = events[1 : at + 1], events[at + 1 : -2]
    for index, (block, kind, delta) in enumerate(
        ((first, "thinking", "thinking_delta"), (second, "tool_use", "input_json_delta"))
    ):
        assert {event.index for event in block} == {index}
        assert (block[0].type, block[0].content_block.type) == ("content_block_start", kind)
        assert {event.delta.type for event in block[1:-1]} == {delta}
        assert block[-1].type == "content_block_stop"
    assert "".join(event.delta.thinking for event in first[1:-1]) == said[0]
    arguments = [event.delta.partial_json for event in second[1:-1]]
    assert len(arguments) > 1
    assert json.loads("".join(arguments)) == json.loads(said[1])["arguments"]


def test_message_goes_on_after_a_call(messages, server):
    """A message that a client got can be given back as it is, with the result of the tool."""
    first = messages.create(tools=[TOOL], **MESSAGE)
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "sunny"}
    conversation = [
        *MESSAGE["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = messages.create(tools=[TOOL], **MESSAGE | {"messages": conversation})
    assert [block.text for block in second.content] == ["Sunny."]
    assert second.stop_reason == "end_turn"
    # The second prompt is the first one with what was generated and the result.
    assert second.usage.cache_read_input_tokens > 0
    server.settled()


def test_message_without_reasoning(messages):
    message = messages.create(tools=[TOOL], thinking={"type": "disabled"}, **MESSAGE)
    assert [block.type for block in message.content] == ["tool_use"]


def test_count_of_tools(messages, llm):
    prompt = llm.tokenizer.encode_chat(MESSAGES, tools=TOOLS, chat_template=TEMPLATE)
    counted = messages.count_tokens(model="small", messages=MESSAGE["messages"], tools=[TOOL])
    assert counted.input_tokens == len(prompt.token_ids)


def test_message_calls_that_must_be(messages):
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        message = messages.create(tools=[TOOL], tool_choice=choice | {"disable_parallel_tool_use": True}, **MESSAGE)
        (use,) = message.content
        assert (use.type, use.name, use.input) == ("tool_use", "get_weather", {"city": "Paris"})
        assert message.stop_reason == "tool_use"
    with pytest.raises(anthropic.BadRequestError, match="tool_choice: got 'other'"):
        messages.create(tools=[TOOL], tool_choice={"type": "tool", "name": "other"}, **MESSAGE)
    with pytest.raises(anthropic.BadRequestError, match=r"thinking: .*budget_tokens"):
        messages.create(thinking={"type": "disabled", "budget_tokens": 1024}, **MESSAGE)
