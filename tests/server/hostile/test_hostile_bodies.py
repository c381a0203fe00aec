"""Bodies that would take too long, or too much: bounded, and refused by the name of what is too much."""

import json
import random

import httpx
import pytest
from pydantic import TypeAdapter
from rocmforge.server import ServerConfig, create_app
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import LIMITS, MAX_ENTRIES, PIECE, SMALL, _count_outside_texts, read_body

ANY = TypeAdapter(dict)
USER = {"role": "user", "content": "a"}


@pytest.fixture
async def client(engine):
    app = create_app(engine, ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        yield client


async def post(client, path, body, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client.post(path, content=content, headers={"content-type": "application/json"} | headers)


def refusal(content):
    with pytest.raises(ApiError) as refused:
        read_body(content, ANY)
    assert refused.value.status_code == 400
    return refused.value


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 1_000_000) + b"]}", "values"),
        (b'{"prompt":[' + b",".join([b"1"] * 16_000_000) + b"]}", "values"),
        (b"[" * 16_000_000, "objects and lists"),
        (b'{"a":' * 1_000_000, "fields of objects"),
        (b'{"a":"' + b"\\n" * 8_000_000 + b'"}', "escapes"),
    ],
    ids=["messages", "ids", "lists", "objects", "escapes"],
)
def test_a_body_of_too_many_values_is_not_read(content, what):
    """H8: what a body has is counted before it is parsed."""
    error = refusal(content)
    assert what in error.detail
    assert error.param == "body"


def test_marks_in_texts_do_not_count():
    """H8: code and tables are full of commas and brackets, and so is the text of a long file."""
    text = '{"a": [1, "\\\\"]}, ' * 50_000
    assert read_body(json.dumps({"prompt": text}).encode(), ANY) == {"prompt": text}


def test_marks_are_counted_as_a_parser_sees_them():
    """H8: at random texts, cut at every place, the count is that of the parsed value."""
    source = random.Random(7)
    letters = ['"', "\\", ",", ":", "{", "[", "a", "\n", "ä"]
    for _ in range(200):
        texts = ["".join(source.choices(letters, k=source.randrange(12))) for _ in range(source.randrange(1, 9))]
        content = json.dumps({"k": texts}, ensure_ascii=False).encode()
        size = source.randrange(1, 9)
        found = _count_outside_texts([content[at : at + size] for at in range(0, len(content), size)])
        counts = [found[ord(mark)] for mark in ",:{["]
        assert counts == [len(texts) - 1, 1, 1, 1], content


@pytest.mark.parametrize("name", MAX_ENTRIES)
def test_lists_are_bounded_by_their_name(name):
    """H8: more messages, tools and the like than agents send are refused by their name."""
    most = MAX_ENTRIES[name]
    value = {str(index): 1 for index in range(most + 1)} if name == "logit_bias" else [{}] * (most + 1)
    if most + 1 > LIMITS["objects and lists"][1] - 2:
        value = value if name == "logit_bias" else [1] * (most + 1)
    error = refusal(json.dumps({name: value}).encode())
    assert (error.param, error.detail) == (name, f"{name}: got {most + 1}, expected at most {most}")


def test_what_agents_send_is_read():
    """H8: 2,000 messages with parts and calls, 200 tools of 40 parameters, 100,000 token ids."""
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string", "description": "a, b"} for n in range(40)}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"p1": "a"}'}}
    turn = [
        {"role": "user", "content": [{"type": "text", "text": "a" * 500}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a\n" * 500},
        {"role": "assistant", "content": "a"},
    ]
    body = {"messages": turn * 500, "tools": [tool] * 200}
    assert read_body(json.dumps(body).encode(), ANY) == body
    ids = {"prompt": list(range(100_000))}
    assert read_body(json.dumps(ids).encode(), ANY) == ids


async def test_small_and_large_bodies_are_read_alike(client):
    """H8: a large body is read on a thread, with the same answer and the same errors."""
    for count in (1, 2 * SMALL, 3 * PIECE):
        text = "a" * count
        for body in ({"prompt": text, "surprise": 1}, {"prompt": [text, 1]}, {"prompt": "a", "n": text}, {}):
            answer = await post(client, "/v1/completions", body)
            assert answer.status_code == 400
            assert len(answer.text) < 1000
            assert answer.json()["error"]["param"] == {3: "n"}.get(len(body), answer.json()["error"]["param"])
            assert answer.json()["error"]["param"]
    ids = [5] * 100
    small = await post(client, "/v1/completions", {"prompt": ids, "max_tokens": 3, "temperature": 0})
    large = await post(
        client, "/v1/completions", {"prompt": ids, "max_tokens": 3, "temperature": 0, "user": "a" * 2 * SMALL}
    )
    assert small.json()["choices"] == large.json()["choices"]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'{"prompt": "a",}', "line 1 column 16"),
        (b'{"prompt":\n "a" "b"}', "line 2 column 6"),
        (b"[" * 300, "recursion limit exceeded at line 1 column 202"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "number out of range at line 1"),
        (b"\xff\xfe", "line 1 column 1"),
    ],
)
async def test_an_error_names_the_place(client, content, place):
    """H20: a body that is not JSON, or too deep, says where."""
    answer = await post(client, "/v1/completions", content)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body"
    assert place in answer.json()["error"]["message"]


async def test_half_a_character_is_an_error_of_its_field(client):
    """H20: JSON can write it, UTF-8 cannot."""
    answer = await post(client, "/v1/completions", b'{"prompt": "\\ud800"}')
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def test_every_refusal_names_its_parameter(client):
    """H20: whatever is wrong, `param` says what."""
    for body, param in (
        ([], "body"),
        ("text", "body"),
        ({}, "prompt"),
        ({"prompt": "a", "n": "x"}, "n"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids"),
        ({"prompt": "a", "structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"prompt": [1] * 300}, "prompt"),
    ):
        answer = await post(client, "/v1/completions", body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["param"] == param, answer.text


async def test_a_body_that_is_packed_is_refused(client):
    """H20: an encoding that is not read is a 415 that says so."""
    answer = await post(client, "/v1/completions", b"x", **{"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert answer.json()["error"]["param"] == "Content-Encoding"
    asked = {"prompt": "a", "max_tokens": 1}
    assert (await post(client, "/v1/completions", asked, **{"content-encoding": "identity"})).status_code == 200
    with_mark = b"\xef\xbb\xbf" + json.dumps(asked).encode()
    assert (await post(client, "/v1/completions", with_mark)).status_code == 200


@pytest.mark.parametrize("name", ["01", " 1", "1_0", "+1", "-1", "1.0", "\u0661", "", "a", "1" * 5000])
async def test_biases_are_given_by_one_spelling_of_an_id(client, name):
    """H21: two keys that are one number would overwrite each other in silence."""
    answer = await post(client, "/v1/completions", {"prompt": "a", "max_tokens": 1, "logit_bias": {"1": 5, name: -5}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "logit_bias"
    assert len(answer.text) < 400
    good = await post(client, "/v1/completions", {"prompt": "a", "max_tokens": 1, "logit_bias": {"1": 5, "10": -5}})
    assert good.status_code == 200


async def test_a_model_s_name_is_shown_short(client):
    """H22: what a client sent does not come back whole."""
    answer = await post(client, "/v1/completions", {"prompt": "a", "model": "m" * 100_000})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
    assert len(answer.text) < 400


async def test_texts_that_cannot_fit_are_refused_by_their_length(client, engine, monkeypatch):
    """H4: nothing tokenises a text that is longer than the context could hold."""
    long = "a" * (engine.max_model_len * 1024 + 1)
    monkeypatch.setattr(type(engine), "tokenize", None)
    message = {"role": "user", "content": long}
    for path, body, param in (
        ("/v1/completions", {"prompt": long}, "prompt"),
        ("/v1/completions", {"prompt": ["a", long]}, "prompt"),
        ("/tokenize", {"prompt": long}, "prompt"),
        ("/tokenize", {"messages": [message]}, "messages"),
        ("/apply_template", {"messages": [message]}, "messages"),
        ("/generate", {"prompt": long}, "prompt"),
        ("/v1/embeddings", {"input": [long]}, "input"),
        ("/v1/rerank", {"query": long, "documents": ["a"]}, "query"),
        ("/v1/chat/completions", {"messages": [message]}, "messages"),
        ("/v1/responses", {"input": long}, "messages"),
    ):
        answer = await post(client, path, body)
        assert answer.status_code == 400, answer.text
        assert "letters, expected at most" in answer.text, (path, answer.text)
        assert "error" in answer.json()
        if isinstance(answer.json()["error"], dict):
            assert answer.json()["error"]["param"] == param
