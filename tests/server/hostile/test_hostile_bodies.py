"""Bodies that would take too long, or too much: bounded, and refused by the name of what is too much."""

import asyncio
import json
import threading
import time

import httpx
import pytest
from pydantic import TypeAdapter
from rocmforge._rocmforge import JsonBody
from rocmforge.server import ServerConfig, create_app
from rocmforge.server.errors import ApiError
from rocmforge.server.http import reading
from rocmforge.server.http.reading import LARGE, LIMITS, MAX_ENTRIES, SMALL, read_body

ANY = TypeAdapter(dict)
USER = {"role": "user", "content": "a"}


@pytest.fixture
async def client(engine):
    app = create_app(engine, ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        yield client


async def post(client, path, asked, **headers):
    content = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    return await client.post(path, content=content, headers={"content-type": "application/json"} | headers)


def body(content, size=65_536):
    """A body that has come in pieces of this many bytes."""
    made = JsonBody()
    for at in range(0, len(content), size):
        made.push(content[at : at + size])
    return made


def read(content):
    return read_body(body(content), ANY)


def refusal(content):
    with pytest.raises(ApiError) as refused:
        read(content)
    assert refused.value.status_code == 400
    return refused.value


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 1_000_000) + b"]}", "objects and lists"),
        (b'{"prompt":[' + b",".join([b"1"] * 16_000_000) + b"]}", "values"),
        (b"{" + b",".join([b'"a":1'] * 1_000_000) + b"}", "fields of objects"),
        (b"[" * 16_000_000, "levels of objects and lists"),
        (b'{"a":"' + b"\\n" * 8_000_000 + b'"}', "escapes"),
    ],
    ids=["messages", "ids", "fields", "brackets", "escapes"],
)
def test_a_body_of_too_many_values_is_not_read(content, what):
    """H8: what a body has is counted before it is parsed."""
    error = refusal(content)
    assert what in error.detail
    assert error.param == "body"


def test_marks_in_texts_do_not_count():
    """H8: code and tables are full of commas and brackets, and so is the text of a long file."""
    text = '{"a": [1, "\\\\"]}, ' * 50_000
    assert read(json.dumps({"prompt": text}).encode()) == {"prompt": text}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 65_536])
def test_values_are_those_of_the_standard_library(size):
    """H8: whatever the pieces in which a body comes; NaN, huge integers and half surrogate pairs are taken alike."""
    text = (
        '{"a": [1, -2.5e3, 1e999, 12345678901234567890123, true, false, null],'
        ' "texts": ["\\u00e4\\ud83d\\ude00ä😀\\n\\"", "\\ud800"],'
        ' "b": {}, "": [[]], "b": {"c": -Infinity}, "long": "' + "x\\t" * 20_000 + '"}'
    )
    assert read_body(body(text.encode(), size), ANY) == json.loads(text)
    value = read_body(body(b'{"a": NaN}', size), ANY)["a"]
    assert value != value


def test_other_threads_run_while_a_body_is_read():
    """H8: another thread looks at the reader's CPU time again and again while a large body is read."""
    content = body(b'{"prompt":[' + b",".join([b"1"] * 1_000_000) + b"]}")
    clock = time.pthread_getcpuclockid(threading.get_ident())
    seen, is_read = [time.clock_gettime(clock)], threading.Event()

    def look():
        while not is_read.wait(0.0002):
            seen.append(time.clock_gettime(clock))

    other = threading.Thread(target=look)
    other.start()
    value = content.read(**LIMITS)
    seen.append(time.clock_gettime(clock))
    is_read.set()
    other.join()
    assert len(value["prompt"]) == 1_000_000
    assert len(content) == 0
    assert len({each for each in seen if seen[0] < each < seen[-1]}) > 1


@pytest.mark.parametrize("name", MAX_ENTRIES)
def test_lists_are_bounded_by_their_name(name):
    """H8: more messages, tools and the like than agents send are refused by their name."""
    most = MAX_ENTRIES[name]
    value = {str(index): 1 for index in range(most + 1)} if name == "logit_bias" else [{}] * (most + 1)
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
    asked = {"messages": turn * 500, "tools": [tool] * 200}
    assert read(json.dumps(asked).encode()) == asked
    ids = {"prompt": list(range(100_000))}
    assert read(json.dumps(ids).encode()) == ids


async def test_small_and_large_bodies_are_read_alike(client):
    """H8: a large body is read on a thread, with the same answer and the same errors."""
    for count in (1, 2 * SMALL, 20 * SMALL):
        text = "a" * count
        for asked in ({"prompt": text, "surprise": 1}, {"prompt": [text, 1]}, {"prompt": "a", "n": text}, {}):
            answer = await post(client, "/v1/completions", asked)
            assert answer.status_code == 400
            assert len(answer.text) < 1000
            assert answer.json()["error"]["param"] == {3: "n"}.get(len(asked), answer.json()["error"]["param"])
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
        (b"[" * 300, "line 1 column 257, expected at most 256 levels"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "line 1 column 16, expected an integer of at most"),
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
    for asked, param in (
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
        answer = await post(client, "/v1/completions", asked)
        assert answer.status_code == 400, asked
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
    for path, asked, param in (
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
        answer = await post(client, path, asked)
        assert answer.status_code == 400, answer.text
        assert "letters, expected at most" in answer.text, (path, answer.text)
        assert "error" in answer.json()
        if isinstance(answer.json()["error"], dict):
            assert answer.json()["error"]["param"] == param


async def test_a_client_has_a_few_large_bodies_at_a_time(client, monkeypatch):
    """H8: the memory of bodies under way is bounded; smaller bodies do not wait."""
    monkeypatch.setattr(reading, "TURNS", reading.Turns(2))
    received, goes_on = [], asyncio.Event()

    async def large(number):
        yield b'{"prompt":"'
        for _ in range(3):
            received.append(number)
            yield b"a" * LARGE
        await goes_on.wait()
        yield b'"}'

    headers = {"content-type": "application/json"}
    asked = [asyncio.create_task(client.post("/v1/completions", content=large(n), headers=headers)) for n in range(4)]
    while len(received) < 2 * 3 + 2:
        await asyncio.sleep(0.01)
    small = await post(client, "/v1/completions", {"prompt": "a", "max_tokens": 1, "user": "a" * 2 * SMALL})
    assert small.status_code == 200
    assert sorted(received) == [0, 0, 0, 1, 1, 1, 2, 3]
    goes_on.set()
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [400] * 4
    while reading.TURNS._clients:
        await asyncio.sleep(0.01)


async def test_a_very_large_body_leaves_time_for_others(client):
    """H8: beyond `AT_ONCE` bytes, the event loop pauses after each piece."""
    num_pauses = 40

    async def pieces():
        yield b'{"prompt":"'
        for _ in range(reading.AT_ONCE // reading.PIECE + num_pauses):
            yield b"a" * reading.PIECE
        yield b'"}'

    started = time.monotonic()
    answer = await client.post("/v1/completions", content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert time.monotonic() - started > num_pauses * reading.PAUSE_SECONDS
