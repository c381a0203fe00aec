"""OpenAI's API with OpenAI's own client, against what the engine says in this process."""

import asyncio
import json

import numpy as np
import openai
import pytest
from rocmforge import LLM, SamplingParams
from rocmforge.server.chat.chats import ChatMessage, ToolCall
from server_process import serving

GREEDY = {"temperature": 0.0, "seed": 1}
HELLO = [{"role": "user", "content": "Say hello to the world."}]

CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path, max_model_len=2048, num_threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    with serving(
        tmp_path_factory.mktemp("log"), smollm2_path, "--max-model-len", 2048, "--served-model-name", "small"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def expected_chat(llm, max_tokens, **params):
    (output,) = llm.chat(HELLO, SamplingParams(max_tokens=max_tokens, temperature=0.0, **params))
    return output


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "small"
    assert client.models.retrieve("small") == model
    with pytest.raises(openai.NotFoundError, match="expected one of those that are served: small"):
        client.models.retrieve("large")


def test_completion(client, llm, server):
    (expected,) = llm.generate("The sky is", SamplingParams(max_tokens=12, temperature=0.0))
    answer = client.completions.create(model="small", prompt="The sky is", max_tokens=12, **GREEDY)
    assert answer.choices[0].text == expected.outputs[0].text
    assert answer.choices[0].finish_reason == "length"
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 12, 15)
    server.settled()


def test_completion_stream_is_the_whole(client):
    whole = client.completions.create(model="small", prompt="The sky is", max_tokens=12, **GREEDY)
    options = {"include_usage": True}
    stream = client.completions.create(
        model="small", prompt="The sky is", max_tokens=12, stream=True, stream_options=options, **GREEDY
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert last.choices == []
    assert last.usage.completion_tokens == 12


def test_completions_of_several_prompts(client, llm):
    """Choices are numbered by prompt, then by sequence."""
    prompts = ["The sky is", "One, two,", "Water"]
    params = SamplingParams(max_tokens=6, temperature=0.0)
    expected = [output.outputs[0].text for output in llm.generate(prompts, params)]
    answer = client.completions.create(model="small", prompt=prompts, n=2, max_tokens=6, **GREEDY)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == [text for text in expected for _ in range(2)]
    texts = [""] * 6
    for chunk in client.completions.create(model="small", prompt=prompts, n=2, max_tokens=6, stream=True, **GREEDY):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in answer.choices]
    ids = [llm.tokenize(prompt) for prompt in prompts]
    again = client.completions.create(model="small", prompt=ids, max_tokens=6, **GREEDY)
    assert [choice.text for choice in again.choices] == expected


def test_completion_logprobs(client, llm):
    (expected,) = llm.generate("The sky is", SamplingParams(max_tokens=4, temperature=0.0, logprobs=2))
    answer = client.completions.create(model="small", prompt="The sky is", max_tokens=4, logprobs=2, **GREEDY)
    found = answer.choices[0].logprobs
    chosen = [next(iter(position.values())) for position in expected.outputs[0].logprobs]
    assert found.tokens == [entry.decoded_token for entry in chosen]
    assert found.token_logprobs == pytest.approx([entry.logprob for entry in chosen])
    assert all(len(position) == 2 for position in found.top_logprobs)
    text = answer.choices[0].text
    assert [text[at:].startswith(token) for at, token in zip(found.text_offset, found.tokens, strict=True)] == [
        True
    ] * 4


def test_echo_scores_a_prompt(client, llm):
    """Evaluation harnesses ask so: log-probabilities of the prompt, and nothing generated."""
    prompt = "The sky is blue."
    answer = client.completions.create(model="small", prompt=prompt, max_tokens=0, echo=True, logprobs=0)
    choice = answer.choices[0]
    assert choice.text == prompt
    ids = llm.tokenize(prompt)
    assert choice.logprobs.tokens == [llm.detokenize([token]) for token in ids]
    logits = llm.prompt_logits(ids).astype("f8")
    scores = logits - logits.max(-1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
    expected = [scores[at - 1, token] for at, token in enumerate(ids)][1:]
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    assert choice.logprobs.text_offset == [0, *[len(llm.detokenize(ids[:at])) for at in range(1, len(ids))]]
    assert answer.usage.completion_tokens == 0


def test_chat(client, llm):
    expected = expected_chat(llm, 16)
    answer = client.chat.completions.create(model="small", messages=HELLO, max_completion_tokens=16, **GREEDY)
    assert answer.choices[0].message.content == expected.outputs[0].text
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


def test_chat_stream_is_the_whole(client, llm):
    expected = expected_chat(llm, 16).outputs[0].text
    stream = client.chat.completions.create(model="small", messages=HELLO, max_tokens=16, n=2, stream=True, **GREEDY)
    texts, reasons = ["", ""], [None, None]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [expected] * 2
    assert reasons == ["length"] * 2


def test_chat_logprobs(client, llm):
    expected = expected_chat(llm, 5, logprobs=3).outputs[0].logprobs
    options = {"max_tokens": 5, "logprobs": True, "top_logprobs": 3, **GREEDY}
    answer = client.chat.completions.create(model="small", messages=HELLO, **options)
    found = answer.choices[0].logprobs.content
    assert [item.logprob for item in found] == pytest.approx([next(iter(one.values())).logprob for one in expected])
    for item in found:
        assert bytes(item.bytes).decode() == item.token
        assert len(item.top_logprobs) == 3
        assert item.top_logprobs[0].logprob == max(top.logprob for top in item.top_logprobs)
    stream = client.chat.completions.create(model="small", messages=HELLO, stream=True, **options)
    streamed = [
        item for chunk in stream for choice in chunk.choices if choice.logprobs for item in choice.logprobs.content
    ]
    assert streamed == found


def test_sampling_reaches_the_engine(client, llm):
    """Each parameter changes what it changes in the engine."""
    given = {"temperature": 1.3, "seed": 7, "top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.2}
    ours = {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 3, "ignore_eos": True}
    (expected,) = llm.generate("Once upon a time", SamplingParams(max_tokens=24, **given, **ours))
    answer = client.completions.create(
        model="small", prompt="Once upon a time", max_tokens=24, extra_body=ours, **given
    )
    assert answer.choices[0].text == expected.outputs[0].text


def test_stop_and_bias(client, llm):
    answer = client.completions.create(model="small", prompt="One, two, three,", max_tokens=40, stop=[","], **GREEDY)
    assert answer.choices[0].finish_reason == "stop"
    assert "," not in answer.choices[0].text
    (token,) = llm.tokenize(" banana", add_special=False)[:1]
    answer = client.completions.create(
        model="small", prompt="One, two,", max_tokens=3, logit_bias={str(token): 100}, **GREEDY
    )
    assert answer.choices[0].text == llm.detokenize([token] * 3)


def test_cached_tokens_are_told(client):
    """A conversation that goes on finds its beginning in the prefix cache."""
    messages = [{"role": "user", "content": "Count to ten, slowly. " * 20}]
    first = client.chat.completions.create(model="small", messages=messages, max_tokens=20, **GREEDY)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "Go on."},
    ]
    second = client.chat.completions.create(model="small", messages=messages, max_tokens=4, **GREEDY)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 16


def test_parts_and_calls_are_for_templates(server):
    """Content in parts is joined; arguments of calls are objects, as templates expect them."""
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    rendered = [ChatMessage(**message).for_template(index) for index, message in enumerate(messages)]
    assert rendered[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    text = server.client.post("/apply_template", json={"messages": messages}).json()["prompt"]
    assert text.startswith("<|im_start|>system\na\nb<|im_end|>")
    assert "sunny" in text


@pytest.mark.parametrize("arguments", ["{", "[]", "[" * 50_000, '{"city": "Ro'])
def test_broken_arguments_of_calls_are_taken(server, arguments):
    """A model has written them, and its client sends them back for ever."""
    call = ToolCall(**CALL | {"function": {"name": "weather", "arguments": arguments}})
    assert call.for_template()["function"]["arguments"] == {"invalid_arguments": arguments}
    body = {"messages": [*HELLO, {"role": "assistant", "tool_calls": [call.model_dump()]}, *HELLO], "max_tokens": 1}
    response = server.client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200 or (len(arguments) > 1000 and "shorten the conversation" in response.text)


BAD = [
    ({"foo": 1}, "foo: this parameter is not supported", "foo"),
    ({"temperature": -1}, "temperature: got -1", "temperature"),
    ({"temperature": "hot"}, "temperature: got 'hot', expected a valid number", "temperature"),
    ({"n": 65}, "n: got 65, expected at most 64", "n"),
    ({"n": 0}, "n: got 0", "n"),
    ({"top_logprobs": 2}, "top_logprobs needs logprobs", None),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: got 21, expected at most 20", "top_logprobs"),
    ({"stop": ["a"] * 17}, "stop: got 17, expected at most 16", "stop"),
    ({"stop": [1]}, "stop: got 1, expected a valid string", "stop"),
    ({"stop": {}}, "stop: got 'dict', expected a valid string, or a valid list", "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias: ", "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options needs stream", None),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "are the same", None),
    ({"messages": []}, "messages: ", "messages"),
    ({"messages": [{"role": "king", "content": "a"}]}, "messages.0.role: got 'king'", "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content: it is missing", "messages.0.content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content: got {'type': 'image_url'}, expected 'image_url' in it",
        "messages.0.content",
    ),
    ({"messages": [{"role": "user", "content": [{"a": 1}]}]}, "got {'a': 1}, expected 'type' in it", None),
    ({"messages": [{"role": "user", "content": "a " * 3000}]}, "expected at most 2047", "messages"),
    ({"response_format": {"type": "xml"}}, "response_format.type: got 'xml'", "response_format.type"),
    ({"model": "gpt"}, "model: got 'gpt'", "model"),
]


@pytest.mark.parametrize(
    ("body", "message", "param"), BAD, ids=[next(iter(body)) + str(i) for i, (body, *_) in enumerate(BAD)]
)
def test_bad_requests_name_the_parameter(server, body, message, param):
    response = server.client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1} | body)
    assert response.status_code == (404 if "model" in body else 400)
    error = response.json()["error"]
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    if param is not None:
        assert error["param"] == param
    if "expected at most 2047" in message:
        assert error["code"] == "context_length_exceeded"
    server.settled()


def test_lone_surrogates_are_refused(server):
    """A8: JSON may spell what UTF-8 cannot hold."""
    for text in ("\ud800", "\ud800" * 20_000):
        for path, body in (
            ("completions", {"prompt": text}),
            ("chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ):
            response = server.client.post(
                f"/v1/{path}", content=json.dumps(body), headers={"content-type": "application/json"}
            )
            assert response.status_code == 400, response.text


async def test_two_hundred_streams(async_client, server, llm):
    """S12: all at once, each gets its own answer."""
    prompts = [f"Number {i} is" for i in range(20)]
    expected = llm.generate(prompts, SamplingParams(max_tokens=8, temperature=0.0))

    async def ask(i):
        stream = await async_client.completions.create(
            model="small", prompt=prompts[i % 20], max_tokens=8, stream=True, **GREEDY
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    answers = await asyncio.gather(*(ask(i) for i in range(200)))
    assert answers == [expected[i % 20].outputs[0].text for i in range(200)]
    await asyncio.to_thread(server.settled)


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_ends_its_request(async_client, server, stream):
    """S20, K2: streamed or not, first token or not."""
    before = await asyncio.to_thread(server.settled)
    long = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}

    async def ask():
        answer = await async_client.completions.create(model="small", prompt="a", stream=stream, **long)
        if stream:
            async for _ in answer:
                pass

    tasks = [asyncio.create_task(ask()) for _ in range(4)]
    while (await asyncio.to_thread(server.stats))["num_running"] < 4:
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    after = await asyncio.to_thread(server.settled)
    assert after["num_finished"]["abort"] == before["num_finished"]["abort"] + 4


def test_timeout_of_a_request(client):
    """The answer says that it is not whole."""
    answer = client.completions.create(
        model="small", prompt="a", max_tokens=1900, extra_body={"timeout": 0.3, "ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "timeout"
    assert 0 < answer.usage.completion_tokens < 1900
