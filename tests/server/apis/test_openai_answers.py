"""OpenAI's answers beside their text: offsets, counts, reasoning by both names."""

import json

import openai
import pytest
from marked_models import model_of
from rocmforge import Tokenizer
from server_process import serving

MESSAGES = [{"role": "user", "content": "Go on."}]
# These tokens of the tiny models are bytes of characters that no token has as a whole.
EMOJI = "a😀é日本b"


@pytest.fixture(scope="module")
def path(tiny_model, tmp_path_factory):
    return model_of("hermes", tmp_path_factory.mktemp("model"), tiny_model)


@pytest.fixture(scope="module")
def client(path, tmp_path_factory):
    with (
        serving(tmp_path_factory.mktemp("log"), path, "--served-model-name", "tiny") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def expected_offsets(data):
    """The characters before each piece of bytes, by what Python decodes of all before it."""
    offsets, before = [], b""
    for piece in data:
        text = before.decode("utf-8", "ignore")
        # Bytes at the end that are no whole character yet.
        offsets.append(len(text))
        before += piece
    return offsets


def test_offsets_of_parts_of_characters(client, path):
    """C12: an offset counts characters of the text, also where one has several tokens."""
    tokenizer = Tokenizer(path)
    answer = client.completions.create(model="tiny", prompt=EMOJI, echo=True, max_tokens=0, logprobs=2)
    (choice,) = answer.choices
    assert choice.text == EMOJI
    ids = tokenizer.encode(EMOJI)
    data = [tokenizer.decode_bytes([token], skip_special=True) for token in ids]
    assert b"".join(data).decode() == EMOJI
    assert choice.logprobs.text_offset == expected_offsets(data)
    for offset, token, piece in zip(choice.logprobs.text_offset, choice.logprobs.tokens, data, strict=True):
        try:
            assert choice.text[offset:].startswith(piece.decode())
        except UnicodeDecodeError:
            assert token == "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
    # Different parts of characters are different keys.
    assert all(len(likely) >= 2 for likely in choice.logprobs.top_logprobs[1:])


@pytest.mark.parametrize("name", ["arch/llama_tied", "arch/gemma2"])
def test_offsets_of_words_with_their_spaces(tiny_model, tmp_path, name):
    """C12: also in a vocabulary whose first word has no space that the text has."""
    with serving(tmp_path, tiny_model(name), "--num-threads", 1) as server:
        prompt = "Hello world, it is"
        body = {"prompt": prompt, "echo": True, "max_tokens": 4, "logprobs": 0, "temperature": 0}
        (choice,) = server.client.post("/v1/completions", json=body).json()["choices"]
        found = choice["logprobs"]
        for offset, token in list(zip(found["text_offset"], found["tokens"], strict=True))[2:]:
            if not token.startswith(("bytes:", "<")):
                assert choice["text"][offset:].startswith(token), (offset, token, choice)


def test_offsets_of_a_stream_are_those_of_the_whole(client):
    """C12: text that waits for the rest of a character, or for a stop string, moves no offset."""
    for seed in range(4):
        asked = {"model": "tiny", "prompt": EMOJI, "max_tokens": 60, "logprobs": 1, "seed": seed, "n": 2}
        whole = client.completions.create(**asked, stop=["zzzzzz"])
        offsets = [[], []]
        for chunk in client.completions.create(**asked, stop=["zzzzzz"], stream=True):
            for choice in chunk.choices:
                offsets[choice.index] += choice.logprobs.text_offset if choice.logprobs else []
        assert offsets == [choice.logprobs.text_offset for choice in whole.choices]


def test_usage_of_streams(client):
    """C21: with include_usage every chunk has a place for the counts, which the last one fills."""
    options = {"include_usage": True, "include_obfuscation": False}
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, "temperature": 0.0}
    with client.chat.completions.with_streaming_response.create(
        stream=True, stream_options=options, extra_body={"thinking_token_budget": 5}, **asked
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    *chunks, last = map(json.loads, lines)
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    details = last["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] >= 1
    with client.chat.completions.with_streaming_response.create(stream=True, **asked) as response:
        plain = [line for line in response.iter_lines() if line.startswith("data: {")]
    assert not any("usage" in json.loads(line.removeprefix("data: ")) for line in plain)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_by_both_names(client, stream):
    """C21: reasoning is `reasoning_content` and `reasoning` in answers, and both are taken back."""
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, "temperature": 0.0}
    asked |= {"extra_body": {"thinking_token_budget": 5}}
    if stream:
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(stream=True, **asked)]
        both = [
            "".join(getattr(each, name, None) or "" for each in deltas) for name in ("reasoning_content", "reasoning")
        ]
    else:
        answer = client.chat.completions.create(**asked)
        assert answer.usage.completion_tokens_details.reasoning_tokens > 0
        message = answer.choices[0].message
        both = [message.reasoning_content, message.reasoning]
    assert both[0]
    assert both[0] == both[1]


def test_reasoning_is_taken_back_by_either_name(client):
    """C21: a message's `reasoning` is its `reasoning_content`, and details beside it change nothing."""
    prompts = set()
    for reasoning_text in (
        {"reasoning_content": "I think."},
        {"reasoning": "I think."},
        {"reasoning": "I think.", "reasoning_content": "I think.", "reasoning_details": [{"type": "x"}]},
    ):
        call = {"id": "a", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}
        turn = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "annotations": [],
            "audio": None,
            **reasoning_text,
        }
        body = {"messages": [*MESSAGES, turn, {"role": "tool", "tool_call_id": "a", "content": "x"}]}
        prompts.add(client.post("/../apply_template", body=body, cast_to=object)["prompt"])
    (prompt,) = prompts
    assert "I think." in prompt


@pytest.mark.parametrize("summary", ["auto", "concise", "detailed"])
def test_summaries_are_taken(client, summary):
    """C10: all reasoning is sent, whatever summary an agent asks for."""
    reasoning = {"effort": "high", "summary": summary, "generate_summary": summary}
    response = client.responses.create(model="tiny", input="Go on.", reasoning=reasoning, max_output_tokens=4)
    assert response.output[0].type == "reasoning"


def test_fields_that_change_nothing(client):
    """C9, C19: what SDKs and agents send unasked leaves the answer as it is."""
    plain = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0.0}
    part = {"type": "text", "text": "Go on.", "cache_control": {"type": "ephemeral", "scope": "global"}}
    more = {
        "messages": [{"role": "user", "content": [part], "cache_control": {"type": "ephemeral"}}],
        "service_tier": "auto",
        "safety_identifier": "x",
        "verbosity": "low",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "store": True,
        "modalities": ["text"],
        "prediction": {"type": "content", "content": "x"},
        "metadata": {"a": "b"},
        "user": "u",
    }
    expected = client.chat.completions.create(**plain).choices[0].message
    assert client.chat.completions.create(**plain | more).choices[0].message == expected
    searching = {"search_context_size": "high", "user_location": {"type": "approximate", "approximate": {}}}
    raw = client.chat.completions.with_raw_response.create(**plain, web_search_options=searching)
    assert raw.headers["x-left-out-tools"] == "web_search"
    assert raw.parse().choices[0].message == expected
    text = client.completions.create(model="tiny", prompt="a", max_tokens=4, temperature=0, n=2, best_of=2, user="u")
    assert len(text.choices) == 2
    with pytest.raises(openai.BadRequestError, match="best_of: got 3, expected 2 as n"):
        client.completions.create(model="tiny", prompt="a", n=2, best_of=3)
    ignored = {"service_tier": "flex", "max_tool_calls": 3, "safety_identifier": "x", "stream_options": {}}
    ignored |= {"text": {"verbosity": "low"}, "prompt_cache_retention": "24h", "truncation": "disabled"}
    asked = {"model": "tiny", "input": "Go on.", "max_output_tokens": 8, "temperature": 0.0}
    assert client.responses.create(**asked, **ignored).output_text == client.responses.create(**asked).output_text
