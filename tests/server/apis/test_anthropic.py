"""Anthropic's API with Anthropic's own client, against what the engine says in this process."""

import asyncio
import json
from typing import Literal

import anthropic
import pydantic
import pytest
from rocmforge import LLM, SamplingParams
from server_process import serving

HELLO = [{"role": "user", "content": "Say hello to the world."}]
# The newest clients have no parameters of sampling of their own.
GREEDY = {"model": "small", "extra_body": {"temperature": 0.0}}
# The answer has more than 450 tokens, which take seconds.
LONG = [{"role": "user", "content": "Write a long story about a dragon."}]
KEY = "a key"


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, max_model_len=512, num_threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    arguments = (smollm2_path, "--max-model-len", 512, "--served-model-name", "small", "--api-key", KEY)
    with serving(tmp_path_factory.mktemp("log"), *arguments, headers={"x-api-key": KEY}) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server):
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


def expected(llm, messages, max_tokens, **options):
    """Asks the engine itself: text, tokens of the prompt, tokens of the answer."""
    (output,) = llm.chat(messages, SamplingParams(max_tokens=max_tokens, temperature=0.0), **options)
    return output.outputs[0].text, len(output.prompt_token_ids), len(output.outputs[0].token_ids)


def test_message(client, llm):
    text, prompt, _ = expected(llm, HELLO, 12)
    message = client.messages.create(messages=HELLO, max_tokens=12, **GREEDY)
    assert (message.type, message.role, message.model) == ("message", "assistant", "small")
    assert [(block.type, block.text) for block in message.content] == [("text", text)]
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == prompt
    assert (usage.cache_creation_input_tokens, usage.output_tokens) == (0, 12)
    assert message.id.startswith("msg_")
    # The client reads the name of its request from a header.
    assert message._request_id


def test_end_of_turn(client, llm):
    """Nothing is left of the token that ends the turn."""
    question = [
        {"role": "user", "content": "Say: Rome"},
        {"role": "assistant", "content": "Rome"},
        {"role": "user", "content": "Say: Paris"},
    ]
    text, _, tokens = expected(llm, question, 40)
    assert tokens < 40
    message = client.messages.create(messages=question, max_tokens=40, **GREEDY)
    assert (message.content[0].text, message.stop_reason) == (text, "end_turn")


def test_system_and_blocks(client, llm):
    """A system prompt in both forms, content in blocks, and marks of a cache are the same conversation."""
    text, _, _ = expected(llm, [{"role": "system", "content": "Talk like a pirate."}, *HELLO], 12)
    mark = {"type": "ephemeral"}
    system = [{"type": "text", "text": "Talk like a pirate.", "cache_control": mark}]
    blocks = [{"role": "user", "content": [{"type": "text", "text": HELLO[0]["content"], "cache_control": mark}]}]
    for given in (
        {"system": "Talk like a pirate.", "messages": HELLO},
        {"system": system, "messages": blocks, "metadata": {"user_id": "someone"}},
    ):
        message = client.messages.create(max_tokens=12, **given, **GREEDY)
        assert message.content[0].text == text


def test_a_last_message_of_the_assistant_is_gone_on_with(client, llm):
    messages = [*HELLO, {"role": "assistant", "content": "One, two, three,"}]
    text, prompt, _ = expected(llm, messages, 6, add_generation_prompt=False, continue_final_message=True)
    message = client.messages.create(messages=messages, max_tokens=6, **GREEDY)
    assert message.content[0].text == text
    assert client.messages.count_tokens(model="small", messages=messages).input_tokens == prompt


def test_turns_are_taken(client, llm):
    """Messages of one role that follow each other are one turn."""
    once = [{"role": "user", "content": "Say hello.\nTo the world."}]
    parts = [{"role": "user", "content": "Say hello."}, {"role": "user", "content": "To the world."}]
    assert client.messages.create(messages=parts, max_tokens=8, **GREEDY).content[0].text == expected(llm, once, 8)[0]


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence_is_told(client, stream):
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, three,"}]
    arguments = {"messages": messages, "max_tokens": 40, "stop_sequences": ["xyz", ","], **GREEDY}
    if stream:
        with client.messages.stream(**arguments) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(**arguments)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ",")
    assert "," not in message.content[0].text


def test_the_end_of_the_room_is_told(client, llm):
    """More tokens than fit may be asked for, and the answer says that the room ended it."""
    messages = [{"role": "user", "content": "a " * 460}, {"role": "assistant", "content": "Once upon a time"}]
    message = client.messages.create(messages=messages, max_tokens=4000, **GREEDY)
    whole = message.usage.input_tokens + message.usage.cache_read_input_tokens + message.usage.output_tokens
    assert (message.stop_reason, whole) == ("model_context_window_exceeded", 512)


def test_events_in_their_order(server, llm):
    """The bytes themselves: each event has its name, and they come in the order that Anthropic documents."""
    body = {"model": "small", "messages": HELLO, "max_tokens": 5, "stream": True, "temperature": 0.0}
    names, values = [], []
    with server.client.stream("POST", "/v1/messages", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["request-id"] == response.headers["x-request-id"]
        for line in response.iter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            elif line.startswith("data: "):
                values.append(json.loads(line.removeprefix("data: ")))
    assert [value["type"] for value in values] == names
    deltas = [value["delta"] for value in values if value["type"] == "content_block_delta"]
    order = ["message_start", "content_block_start", "ping", *["content_block_delta"] * len(deltas)]
    assert names == [*order, "content_block_stop", "message_delta", "message_stop"]
    text, prompt, _ = expected(llm, HELLO, 5)
    assert "".join(delta["text"] for delta in deltas) == text
    begun = values[0]["message"]
    assert (begun["content"], begun["stop_reason"]) == ([], None)
    assert begun["usage"]["input_tokens"] + begun["usage"]["cache_read_input_tokens"] == prompt
    assert values[1] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert values[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert values[-2]["usage"]["output_tokens"] == 5


def test_stream_helper(client, llm):
    text, _, _ = expected(llm, HELLO, 12)
    with client.messages.stream(messages=HELLO, max_tokens=12, **GREEDY) as stream:
        assert "".join(stream.text_stream) == text
        message = stream.get_final_message()
    assert message.content[0].text == text
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)


async def test_async_clients_at_once(async_client, llm):
    questions = [[{"role": "user", "content": f"What is {number} plus one?"}] for number in range(8)]
    texts = [expected(llm, question, 6)[0] for question in questions]

    async def ask(question):
        async with async_client.messages.stream(messages=question, max_tokens=6, **GREEDY) as stream:
            return await stream.get_final_text()

    assert await asyncio.gather(*map(ask, questions)) == texts
    message = await async_client.messages.create(messages=questions[0], max_tokens=6, **GREEDY)
    assert message.content[0].text == texts[0]


def test_count_tokens(client, llm):
    conversation = [{"role": "system", "content": "Be brief."}, *HELLO]
    count = len(llm.tokenizer.encode_chat(conversation).token_ids)
    assert client.messages.count_tokens(model="small", system="Be brief.", messages=HELLO).input_tokens == count


def test_cached_tokens_are_told(client):
    """A conversation that goes on finds its beginning in the prefix cache, and is counted once."""
    messages = [{"role": "user", "content": "Count to ten, slowly. " * 12}]
    first = client.messages.create(messages=messages, max_tokens=8, **GREEDY)
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "Go on."}]
    second = client.messages.create(messages=messages, max_tokens=2, **GREEDY)
    before = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens >= before - 16
    counted = client.messages.count_tokens(model="small", messages=messages).input_tokens
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == counted


def test_history_with_tools_and_reasoning(client, llm):
    """This model's template knows text alone: calls become text, reasoning leaves the prompt, and results are turns."""
    messages = [
        {"role": "user", "content": "How is the weather in Rome?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should ask.", "signature": ""},
                {"type": "text", "text": "I ask."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No network.", "is_error": True},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    plain = [
        messages[0],
        {"role": "assistant", "content": 'I ask.\n{"name": "weather", "arguments": {"city": "Rome"}}'},
        {"role": "tool", "content": "Error: No network."},
        {"role": "user", "content": "And now?"},
    ]
    text, prompt, _ = expected(llm, plain, 8)
    assert client.messages.create(messages=messages, max_tokens=8, **GREEDY).content[0].text == text
    assert client.messages.count_tokens(model="small", messages=messages).input_tokens == prompt


USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": "1"}]}
BAD = [
    ({"foo": 1}, "foo: this parameter is not supported"),
    ({"max_tokens": None}, "max_tokens: it is missing"),
    ({"max_tokens": 0}, "max_tokens: got 0"),
    ({"messages": []}, "messages: "),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages.0.role: got 'king'"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.source: it is missing"),
    ({"messages": [USE]}, "messages.0: got a tool_use block at the end"),
    ({"messages": [*HELLO, USE, RESULT]}, "messages.2.content: got a tool_result for 'b'"),
    ({"messages": [{**USE, "role": "user"}]}, "no tool_use block in a message of the role user"),
    ({"messages": [{"role": "user", "content": "a " * 600}]}, "expected at most 511"),
    ({"temperature": -1}, "temperature: got -1"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences: got 17, expected at most 16"),
    ({"stop_sequences": [""]}, "stop_sequences: "),
]


@pytest.mark.parametrize(("body", "said"), BAD, ids=[f"{next(iter(body))}{i}" for i, (body, _) in enumerate(BAD)])
def test_bad_requests_name_the_parameter(server, body, said):
    response = server.client.post("/v1/messages", json={"model": "small", "messages": HELLO, "max_tokens": 1} | body)
    assert response.status_code == 400
    answer = response.json()
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert said in answer["error"]["message"]


def test_errors_are_the_clients_own(server, client):
    with pytest.raises(anthropic.BadRequestError, match="top_p: got 2") as bad:
        client.messages.create(messages=HELLO, max_tokens=1, model="small", extra_body={"top_p": 2.0})
    assert bad.value.request_id
    with pytest.raises(anthropic.NotFoundError, match="expected one of those that are served: small"):
        client.messages.create(messages=HELLO, max_tokens=1, model="large")
    with (
        anthropic.Anthropic(base_url=server.url, api_key="another", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError, match="a key that is not known") as refused,
    ):
        stranger.messages.create(messages=HELLO, max_tokens=1, **GREEDY)
    assert refused.value.request_id


def test_a_time_limit_is_an_error(client, server):
    """Anthropic has no stop reason for it; in a stream the error is an event."""
    options = {"messages": LONG, "max_tokens": 450, "model": "small"}
    options["extra_body"] = {"timeout": 0.2, "temperature": 0.0}
    with pytest.raises(anthropic.APIStatusError, match="the time of the request was over") as late:
        client.messages.create(**options)
    assert late.value.status_code == 408
    with pytest.raises(anthropic.APIStatusError, match="timeout_error"), client.messages.stream(**options) as stream:
        stream.until_done()
    server.settled()


def test_a_client_that_waits_no_longer_ends_its_request(client, server):
    before = server.settled()
    with pytest.raises(anthropic.APITimeoutError):
        client.with_options(timeout=0.3).messages.create(messages=LONG, max_tokens=450, **GREEDY)
    assert server.settled()["num_finished"]["abort"] == before["num_finished"]["abort"] + 1


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_stream_that_is_left_ends_its_request(async_client, server, cancelled):
    before = await asyncio.to_thread(server.settled)

    async def ask():
        async with async_client.messages.stream(messages=LONG, max_tokens=450, **GREEDY) as stream:
            async for event in stream:
                if event.type == "text" and not cancelled:
                    break

    task = asyncio.create_task(ask())
    while cancelled and not task.done() and (await asyncio.to_thread(server.stats))["num_running"] == 0:
        await asyncio.sleep(0.005)
    if cancelled:
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    after = await asyncio.to_thread(server.settled)
    assert after["num_finished"]["abort"] == before["num_finished"]["abort"] + 1


class City(pydantic.BaseModel):
    """A class that `parse` of the client makes a schema of."""

    kind: Literal["capital", "village"]
    bridges: int


def test_client_parses_its_own_class(client):
    asked = [{"role": "user", "content": "Describe the city of Paris."}]
    answer = client.messages.parse(messages=asked, max_tokens=60, output_format=City, **GREEDY)
    assert answer.parsed_output.kind in ("capital", "village")


def test_what_the_template_does_not_tell_is_refused(client):
    """This model's own template knows neither tools nor reasoning."""
    tool = {"name": "f", "input_schema": {"type": "object"}}
    with pytest.raises(anthropic.BadRequestError, match="tools: the model's chat template has no call format"):
        client.messages.create(messages=HELLO, max_tokens=1, tools=[tool], **GREEDY)
    with pytest.raises(anthropic.BadRequestError, match="thinking: the model does not think"):
        enabled = {"type": "enabled", "budget_tokens": 1024}
        client.messages.create(messages=HELLO, max_tokens=1, thinking=enabled, **GREEDY)
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.effort: .* knows no efforts"):
        client.messages.create(messages=HELLO, max_tokens=1, output_config={"effort": "low"}, **GREEDY)
    # To think as much as it likes, and the effort that is the default, are for a model that never thinks, too.
    free = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    client.messages.create(messages=HELLO, max_tokens=1, **free, **GREEDY)
    none = {"tools": [tool], "tool_choice": {"type": "none"}, "thinking": {"type": "disabled"}}
    assert client.messages.create(messages=HELLO, max_tokens=1, **none, **GREEDY).content
