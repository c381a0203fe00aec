"""OpenAI's Responses API with OpenAI's own client, against what the engine says in this process."""

import asyncio
import json

import openai
import pytest
from calling_model import MAX_TOKENS, MESSAGES, SCHEMA, TEMPLATE, TOOLS, parts, raw_text
from rocmforge import LLM, CompletionOutput, SamplingParams
from rocmforge.outputs import Logprob
from rocmforge.parsing import ChatFormat, Content, OutputParser
from rocmforge.parsing.formats import THINK
from rocmforge.server.openai.logprobs import AnswerLogprobs
from server_process import serving

QUESTION = "Say hello to the world."
# The answer has more than 450 tokens, which take seconds.
LONG = "Write a long story about a dragon."
ASK = {"model": "small", "temperature": 0.0}
KEYS = ("one", "two")
# Answers that are kept for each key.
KEPT = 12


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, max_model_len=1024, num_threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("responses")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    keys = [word for key in KEYS for word in ("--api-key", key)]
    arguments = ("--max-model-len", 1024, "--served-model-name", "small", "--chat-template", template, *keys)
    limits = ("--max-responses", KEPT, "--max-response-bytes", 20_000)
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    with serving(folder, smollm2_path, *arguments, *limits, headers=headers) as server:
        yield server


def client_of(server, key):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def responses(server):
    with client_of(server, KEYS[0]) as client:
        yield client.responses


def expected(llm, messages, max_tokens, **options):
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    (output,) = llm.chat(messages, params, chat_template=TEMPLATE, **options)
    return output


def user(text):
    return {"role": "user", "content": text}


def test_response(responses, llm):
    output = expected(llm, [user(QUESTION)], 12)
    response = responses.create(input=QUESTION, max_output_tokens=12, metadata={"a": "b"}, **ASK)
    assert response.output_text == output.outputs[0].text
    assert (response.object, response.model, response.metadata) == ("response", "small", {"a": "b"})
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    (item,) = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "incomplete")
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(output.prompt_token_ids), 12)
    assert usage.total_tokens == usage.input_tokens + 12
    assert usage.output_tokens_details.reasoning_tokens == 0
    assert responses.retrieve(response.id) == response


def test_instructions_and_items(responses, llm):
    """Instructions, roles and forms of content are one conversation; a developer is the system."""
    messages = [
        {"role": "system", "content": "Talk like a pirate."},
        user("Hello."),
        {"role": "assistant", "content": "Ahoy."},
        user("And\nnow?"),
    ]
    text = expected(llm, messages, 8).outputs[0].text
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "Ahoy.", "annotations": []}]}
    last = user([{"type": "input_text", "text": "And"}, {"type": "input_text", "text": "now?"}])
    talk = [user("Hello."), said, last]
    for options in (
        {"instructions": "Talk like a pirate.", "input": talk},
        {"input": [{"type": "message", "role": "developer", "content": "Talk like a pirate."}, *talk]},
    ):
        assert responses.create(max_output_tokens=8, **options, **ASK).output_text == text


def test_events_in_their_order(server, llm):
    """The bytes themselves: each event has its name and its number."""
    body = {"input": QUESTION, "max_output_tokens": 5, "stream": True, "temperature": 0.0}
    names, values = [], []
    with server.client.stream("POST", "/v1/responses", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
            elif line.startswith("data: "):
                values.append(json.loads(line.removeprefix("data: ")))
    assert [value["type"] for value in values] == names
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    deltas = [value["delta"] for value in values if value["type"] == "response.output_text.delta"]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = expected(llm, [user(QUESTION)], 5).outputs[0].text
    assert "".join(deltas) == text == values[-4]["text"] == values[-3]["part"]["text"]
    assert values[2]["item"]["content"] == []
    assert values[3]["part"]["text"] == ""
    assert values[-2]["item"] == values[-1]["response"]["output"][0]
    assert values[0]["response"]["status"] == "in_progress"
    assert {value["item_id"] for value in values if "item_id" in value} == {values[2]["item"]["id"]}


def test_stream_helper(responses, llm):
    text = expected(llm, [user(QUESTION)], 12).outputs[0].text
    with responses.stream(input=QUESTION, max_output_tokens=12, **ASK) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
    assert "".join(pieces) == text


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(responses, llm, stream):
    """They are those of the engine itself, for each token of the text."""
    params = SamplingParams(max_tokens=8, temperature=0.0, logprobs=2)
    (output,) = llm.chat([user(QUESTION)], params, chat_template=TEMPLATE)
    (one,) = output.outputs
    asked = {"input": QUESTION, "max_output_tokens": 8, "top_logprobs": 2, **ASK}
    if stream:
        events = list(responses.create(stream=True, include=["message.output_text.logprobs"], **asked))
        response = events[-1].response
        streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
        (done,) = [event for event in events if event.type == "response.output_text.done"]
        assert [entry.logprob for entry in streamed] == [entry.logprob for entry in done.logprobs]
    else:
        response = responses.create(**asked)
    (part,) = response.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == one.text == part.text
    expected = [position[token] for token, position in zip(one.token_ids, one.logprobs, strict=True)]
    assert [entry.logprob for entry in part.logprobs] == pytest.approx([entry.logprob for entry in expected])
    if stream:
        assert [entry.logprob for entry in streamed] == [entry.logprob for entry in part.logprobs]
    for entry, position in zip(part.logprobs, one.logprobs, strict=True):
        likely = sorted(position.values(), key=lambda each: each.rank)[:2]
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx([each.logprob for each in likely])
        assert bytes(entry.bytes).decode() == entry.token
    asked = {"input": QUESTION, "max_output_tokens": 2, "include": ["message.output_text.logprobs"], **ASK}
    alone = responses.create(**asked)
    assert [entry.top_logprobs for entry in alone.output[0].content[0].logprobs] == [[], []]
    again = list(responses.retrieve(alone.id, stream=True))
    (delta,) = [event for event in again if event.type == "response.output_text.delta"]
    assert [entry.logprob for entry in delta.logprobs] == [one.logprobs[at][one.token_ids[at]].logprob for at in (0, 1)]


REPLY = "<think>\nIs it? Yes.\n</think>\nYes, né.\n<tool_call>\n"
REPLY += '{"name": "look", "arguments": {"at": "Yes"}}\n</tool_call> Yes'


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_log_probabilities_of_the_answer_alone(llm, size):
    """Reasoning and calls have none, wherever the outputs are cut."""
    tokenizer, answer, found = llm.tokenizer, "", []
    logprobs = AnswerLogprobs(tokenizer, 0, skip_special=True)
    parser = OutputParser(ChatFormat(THINK, "hermes"), [{"name": "look"}])
    ids = tokenizer.encode(REPLY, add_special=False)
    for start in range(0, len(ids), size):
        before, now = (tokenizer.decode(ids[:at]).rstrip("\ufffd") for at in (start, start + size))
        part = ids[start : start + size]
        positions = [{token: Logprob(-1.0 - start - at, 1, "")} for at, token in enumerate(part)]
        logprobs.add(CompletionOutput(0, now[len(before) :], part, None, None, positions, None))
        events = parser.feed(now[len(before) :])
        if start + size >= len(ids):
            events += parser.finish()
        for event in events:
            answer += event.text if isinstance(event, Content) else ""
            found += logprobs.take(event)
    assert answer.split() == ["Yes,", "né.", "Yes"]
    assert b"".join(bytes(entry["bytes"]) for entry in found).decode().split() == answer.split()
    places = [-1 - entry["logprob"] for entry in found]
    assert places == sorted(places)
    assert [ids[int(place)] for place in places[-1:]] == ids[-1:]


def test_other_names_of_models(server, responses):
    """The first name of the list that is served answers, unless the model itself is."""
    for given, status in (({"models": ["gpt-x", "small"]}, 200), ({"model": "gpt-x", "models": ["small"]}, 200),
                          ({"model": "small", "models": ["gpt-x"]}, 200), ({"models": ["gpt-x"]}, 404),
                          ({"model": "gpt-y", "models": ["gpt-x"]}, 404)):  # fmt: skip
        body = {"max_output_tokens": 1, "input": QUESTION, **given}
        made = server.client.post("/v1/responses", json=body)
        assert made.status_code == status, given
        error = "model: got 'gpt-y'" if "model" in given else "models: got 'gpt-x'"
        assert made.json()["model"] == "small" if status == 200 else error in made.json()["error"]["message"]
        count = server.client.post("/v1/responses/input_tokens", json={"input": QUESTION, **given})
        assert count.status_code == status, given


async def test_async_clients_at_once(server, llm):
    questions = [f"What is {number} plus one?" for number in range(6)]
    texts = [expected(llm, [user(question)], 6).outputs[0].text for question in questions]
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0], max_retries=0) as client:

        async def ask(question):
            text = ""
            stream = await client.responses.create(input=question, max_output_tokens=6, stream=True, store=False, **ASK)
            async for event in stream:
                text += event.delta if event.type == "response.output_text.delta" else ""
            return text

        assert await asyncio.gather(*map(ask, questions)) == texts


def test_a_conversation_goes_on(responses, llm):
    """The answer's id stands for the whole conversation, but not for its instructions."""
    first = responses.create(input=QUESTION, instructions="Talk like a pirate.", max_output_tokens=6, **ASK)
    second = responses.create(input="Again.", previous_response_id=first.id, max_output_tokens=6, **ASK)
    third = responses.create(input="Again.", previous_response_id=second.id, max_output_tokens=6, **ASK)
    talk = [user(QUESTION), {"role": "assistant", "content": first.output_text}, user("Again.")]
    assert second.output_text == expected(llm, talk, 6).outputs[0].text
    talk += [{"role": "assistant", "content": second.output_text}, user("Again.")]
    output = expected(llm, talk, 6)
    assert third.output_text == output.outputs[0].text
    assert third.usage.input_tokens == len(output.prompt_token_ids)
    assert third.usage.input_tokens_details.cached_tokens > 0
    assert third.previous_response_id == second.id


def test_input_items(responses):
    items = [user("One."), {"role": "assistant", "content": "Two."}, user("Three.")]
    response = responses.create(input=items, max_output_tokens=1, **ASK)
    listed = list(responses.input_items.list(response.id, order="asc"))
    assert [item.content[0].text for item in listed] == ["One.", "Two.", "Three."]
    assert [item.id for item in responses.input_items.list(response.id)] == [item.id for item in listed][::-1]
    page = responses.input_items.list(response.id, limit=2)
    assert (len(page.data), page.has_more) == (2, True)
    # The client asks for the pages that follow by itself.
    assert len(list(page)) == 3
    with pytest.raises(openai.BadRequestError, match="after: got 'x'"):
        responses.input_items.list(response.id, after="x")


def test_what_is_kept_and_what_is_not(server, responses):
    response = responses.create(input="Hi.", max_output_tokens=1, **ASK)
    other = responses.create(input="Hi.", max_output_tokens=1, store=False, **ASK)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(other.id)
    with client_of(server, KEYS[1]) as stranger:
        with pytest.raises(openai.NotFoundError):
            stranger.responses.retrieve(response.id)
        with pytest.raises(openai.NotFoundError):
            stranger.responses.delete(response.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id: got"):
            stranger.responses.create(input="Hi.", previous_response_id=response.id, **ASK)
        # One client does not push out what another one keeps.
        for _ in range(KEPT + 1):
            stranger.responses.create(input="Hi.", max_output_tokens=1, **ASK)
    responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match="expected the id of one that is kept"):
        responses.retrieve(response.id)


def test_the_store_is_bounded(responses):
    """By number and by bytes; what was used last is kept."""
    first = responses.create(input="Hi.", max_output_tokens=1, **ASK)
    second = responses.create(input="Hi.", max_output_tokens=1, **ASK)
    for _ in range(KEPT - 2):
        responses.create(input="Hi.", max_output_tokens=1, **ASK)
    responses.retrieve(first.id)
    responses.create(input="Hi.", max_output_tokens=1, **ASK)
    responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(second.id)
    # Each of these takes more than half of the bytes.
    large = {"input": "Hi.", "max_output_tokens": 1, "metadata": {"a": "b" * 12_000}}
    before, after = (responses.create(**large, **ASK).id for _ in range(2))
    assert responses.retrieve(after).id == after
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(before)


def function_items():
    """The conversation with calls, as items."""
    made = []
    for message in MESSAGES:
        if message["role"] == "tool":
            made.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
            continue
        if reasoning_text := message.get("reasoning_content"):
            content = [{"type": "reasoning_text", "text": reasoning_text}]
            made.append({"type": "reasoning", "id": f"rs_{len(made)}", "summary": [], "content": content})
        if message["content"]:
            made.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls", []):
            name, arguments = call["function"]["name"], json.dumps(call["function"]["arguments"])
            made.append({"type": "function_call", "call_id": call["id"], "name": name, "arguments": arguments})
    return made


FUNCTION = TOOLS[0]["function"]
TOOL = {"type": "function", "name": FUNCTION["name"], "description": FUNCTION["description"], "parameters": SCHEMA}
TOOL["strict"] = False
CALLING = {"input": function_items(), "tools": [TOOL], "max_output_tokens": MAX_TOKENS, **ASK}


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_and_calls(responses, llm, stream):
    """The model's own text, taken apart by an expression for this form, is the oracle."""
    text = raw_text(llm, tools=TOOLS)
    reasoning_text, call = parts(text)
    if stream:
        events = list(responses.create(stream=True, **CALLING))
        response = events[-1].response
        kinds = [event.type for event in events if not event.type.endswith(".delta")]
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
        written = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert len(written) > 1
        assert json.loads("".join(written)) == json.loads(call)["arguments"]
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(deltas) == reasoning_text
    else:
        response = responses.create(**CALLING)
    reasoning, found = response.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", reasoning_text)
    assert {"name": found.name, "arguments": json.loads(found.arguments)} == json.loads(call)
    assert (found.type, found.status, response.status) == ("function_call", "completed", "completed")
    assert response.usage.output_tokens_details.reasoning_tokens == len(llm.tokenize(reasoning_text, add_special=False))


def test_a_call_is_answered(responses):
    first = responses.create(**CALLING)
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "sunny"}
    second = responses.create(**CALLING | {"input": [result]}, previous_response_id=first.id)
    assert second.output_text == "Sunny."
    assert second.status == "completed"


def test_no_reasoning(responses):
    (call,) = responses.create(reasoning={"effort": "none"}, **CALLING).output
    assert call.type == "function_call"


BAD = [
    ({"foo": 1}, "foo: this parameter is not supported"),
    ({"input": None}, "input: it is missing"),
    ({"input": []}, "input: "),
    (
        {"input": [{"type": "item_reference", "id": "a"}]},
        "input: got a reference to 'a', expected the id of an item of an answer",
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, "an output of the call 'a'"),
    ({"input": "a " * 2000}, "expected at most 1023"),
    ({"top_logprobs": 21}, "top_logprobs: got 21, expected at most 20"),
    ({"background": True}, "background: got True"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema: expected with the type json_schema"),
    ({"tools": [{"type": "web_seach"}]}, "tools.0: got {'type': 'web_seach'}, expected a tool of the type function"),
    ({"tool_choice": "required"}, "tool_choice: got 'required'"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary: got 'long', expected 'auto', 'concise' or 'detailed'"),
    ({"reasoning": {"effort": "none"}, "temperature": -1}, "temperature: got -1"),
    ({"previous_response_id": "resp_x"}, "previous_response_id: got 'resp_x'"),
]


@pytest.mark.parametrize(("body", "said"), BAD, ids=[f"{next(iter(body))}{i}" for i, (body, _) in enumerate(BAD)])
def test_bad_requests_name_the_parameter(server, body, said):
    response = server.client.post("/v1/responses", json={"input": "Hi.", "max_output_tokens": 1} | body)
    assert response.status_code == 400, response.text
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("value", ["NaN", "1e999", '"\\ud800"', "[" * 700 + "]" * 700])
def test_what_json_cannot_hold_is_refused(server, value):
    """Python reads it, but nobody could give it back."""
    tool = f'{{"type": "function", "name": "f", "parameters": {{"x": {value}}}}}'
    body = f'{{"input": "Hi.", "max_output_tokens": 1, "tool_choice": "none", "tools": [{tool}]}}'
    response = server.client.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    # Some of it is not read at all; then the place is told.
    message = response.json()["error"]["message"]
    assert "tools.0.parameters: got" in message or "line 1 column" in message
    body = '{"input": "Hi.", "metadata": {"a": "\\ud800"}}'
    response = server.client.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text


def test_a_time_limit_is_told(responses):
    late = {"input": LONG, "extra_body": {"timeout": 0.2}, **ASK}
    with pytest.raises(openai.APIStatusError, match="the time of the request was over"):
        responses.create(**late)
    last = list(responses.create(stream=True, **late))[-1]
    assert (last.type, last.response.status, last.response.error.code) == (
        "response.failed",
        "failed",
        "timeout_error",
    )
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(last.response.id)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_request(server, stream):
    before = await asyncio.to_thread(server.settled)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYS[0], max_retries=0) as client:

        async def ask():
            answer = await client.responses.create(input=LONG, stream=stream, **ASK)
            if stream:
                async for event in answer:
                    if event.type == "response.output_text.delta":
                        break
                await answer.close()

        task = asyncio.create_task(ask())
        while not stream and not task.done() and (await asyncio.to_thread(server.stats))["num_running"] == 0:
            await asyncio.sleep(0.005)
        if not stream:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    after = await asyncio.to_thread(server.settled)
    assert after["num_finished"]["abort"] == before["num_finished"]["abort"] + 1
