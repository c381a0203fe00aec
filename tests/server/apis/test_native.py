"""The API of `/generate`, `/status` and `/cancel`, against what the engine says in this process."""

import json
import threading
import time

import httpx
import pytest
from rocmforge import LLM, SamplingParams
from rocmforge.server.answers.generation import ANONYMOUS
from rocmforge.server.endpoints import native
from rocmforge.server.errors import ApiError
from server_process import serving

KEYS = ["first-key", "second-key"]
GREEDY = {"temperature": 0.0}
# Longer than any test.
LONG = {"prompt": "The sky is", "max_tokens": 1900, "ignore_eos": True, **GREEDY}


@pytest.fixture(scope="module")
def server(smollm2_path, tmp_path_factory):
    keys = [argument for key in KEYS for argument in ("--api-key", key)]
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    folder = tmp_path_factory.mktemp("log")
    with serving(folder, smollm2_path, "--max-model-len", 2048, *keys, headers=headers) as server:
        yield server


@pytest.fixture(scope="module")
def stranger(server):
    """A client with another key."""
    with httpx.Client(base_url=server.url, headers={"x-api-key": KEYS[1]}, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def expected(smollm2_path):
    with LLM(smollm2_path, max_model_len=2048) as llm:
        (output,) = llm.generate("The sky is", SamplingParams(max_tokens=12, temperature=0.0))
    return output.outputs[0]


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line.startswith("data: ")]


def running(client, name):
    """The state of a request once it has generated something."""
    deadline = time.monotonic() + 20
    while (response := client.get(f"/status/{name}")).status_code != 200 or not response.json()["tokens"]:
        assert time.monotonic() < deadline, response.text
        time.sleep(0.005)
    return response.json()


def test_generate(server, expected):
    response = server.client.post("/generate", json={"prompt": "The sky is", "max_tokens": 12, **GREEDY})
    answer = response.json()
    assert answer == {
        "request_id": response.headers["x-request-id"],
        "text": expected.text,
        "tokens": expected.token_ids,
        "finished": True,
        "finish_reason": "length",
    }
    assert server.client.get(f"/status/{answer['request_id']}").json() == answer
    # A request that has ended stays as it is.
    assert server.client.post(f"/cancel/{answer['request_id']}").json() == answer


def test_a_hundred_tokens_by_default(server):
    answer = server.client.post("/generate", json={"prompt": "One, two", "ignore_eos": True, **GREEDY}).json()
    assert len(answer["tokens"]) == 100


def test_token_ids_are_a_prompt(server, expected, smollm2_path):
    with LLM(smollm2_path, max_model_len=64) as llm:
        ids = llm.tokenize("The sky is")
    answer = server.client.post("/generate", json={"prompt": ids, "max_tokens": 12, **GREEDY}).json()
    assert answer["tokens"] == expected.token_ids


@pytest.mark.parametrize(("path", "more"), [("/generate/stream", {}), ("/generate", {"stream": True})])
def test_stream(server, expected, path, more):
    body = {"prompt": "The sky is", "max_tokens": 12, **GREEDY, **more}
    with server.client.stream("POST", path, json=body, headers={"x-request-id": "streamed"}) as response:
        found = events(response)
    assert [one["token"] for one in found] == expected.token_ids
    assert "".join(one["text"] for one in found) == expected.text
    assert {one["request_id"] for one in found} == {"streamed"}
    assert [one["finished"] for one in found] == [False] * 11 + [True]
    assert [one["finish_reason"] for one in found] == [None] * 11 + ["length"]
    assert server.client.get("/status/streamed").json()["text"] == expected.text


def test_sampling_parameters_reach_the_engine(server, expected):
    stop = expected.text.split()[2]
    answer = server.client.post("/generate", json={"prompt": "The sky is", "max_tokens": 12, "stop": stop, **GREEDY})
    assert answer.json()["text"] == expected.text[: expected.text.index(stop)]
    assert answer.json()["finish_reason"] == "stop"
    one = {"prompt": "The sky is", "max_tokens": 12, "temperature": 2.0, "top_k": 1, "seed": 7}
    assert server.client.post("/generate", json=one).json()["tokens"] == expected.token_ids
    penalized = {"prompt": "The sky is", "max_tokens": 12, **GREEDY}
    answers = [
        server.client.post("/generate", json=penalized | {name: 1.9}).json()["tokens"]
        for name in ("repeat_penalty", "repetition_penalty")
    ]
    assert answers[0] == answers[1] != expected.token_ids


def test_cancel_of_a_stream(server):
    with server.client.stream("POST", "/generate/stream", json=LONG, headers={"x-request-id": "long"}) as response:
        lines = response.iter_lines()
        next(lines)
        so_far = running(server.client, "long")
        assert not so_far["finished"]
        assert so_far["finish_reason"] is None
        answer = server.client.post("/cancel/long").json()
        assert answer["finished"]
        assert answer["finish_reason"] == "cancelled"
        assert answer["tokens"][: len(so_far["tokens"])] == so_far["tokens"]
        found = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert (found[-1]["finished"], found[-1]["finish_reason"]) == (True, "cancelled")
    # Its answer, the stream and the result tell the same.
    assert [one["token"] for one in found if one["token"] is not None] == answer["tokens"][1:]
    assert server.client.get("/status/long").json() == answer
    assert len(answer["tokens"]) < 1900
    server.settled()


def test_cancel_of_a_whole_answer(server):
    answers = []

    def ask():
        answers.append(server.client.post("/generate", json=LONG, headers={"x-request-id": "whole"}).json())

    thread = threading.Thread(target=ask)
    thread.start()
    running(server.client, "whole")
    # The name is the client's own while the request runs.
    again = server.client.post("/generate", json=LONG, headers={"x-request-id": "whole"})
    assert again.status_code == 400
    answer = server.client.post("/cancel/whole").json()
    thread.join()
    assert answers == [answer]
    assert answer["finish_reason"] == "cancelled"
    server.settled()


def test_a_client_that_leaves(server):
    with server.client.stream("POST", "/generate/stream", json=LONG, headers={"x-request-id": "left"}) as response:
        next(response.iter_lines())
    server.settled()
    answer = server.client.get("/status/left").json()
    assert (answer["finished"], answer["finish_reason"]) == (True, "cancelled")
    assert 0 < len(answer["tokens"]) < 1900


def test_others_do_not_see_it(server, stranger):
    headers = {"x-request-id": "mine"}
    with server.client.stream("POST", "/generate/stream", json=LONG, headers=headers) as response:
        next(response.iter_lines())
        mine = running(server.client, "mine")
        for method, path in (("GET", "/status"), ("POST", "/cancel")):
            refused = [stranger.request(method, f"{path}/{name}") for name in ("mine", "none")]
            assert [one.status_code for one in refused] == [404, 404]
            assert refused[0].text == refused[1].text.replace("none", "mine")
        # The name is no secret of its own either: another client's request may have it.
        theirs = stranger.post("/generate", json={"prompt": "a", "max_tokens": 1}, headers=headers)
        assert theirs.status_code == 200
        assert len(stranger.get("/status/mine").json()["tokens"]) == 1
        assert len(running(server.client, "mine")["tokens"]) >= len(mine["tokens"])
    server.settled()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"top_kk": 1}, "top_kk"),
        ({"top_p": 2.0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 2}, "n: "),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repe"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
    ],
)
def test_errors_name_the_parameter(server, change, named):
    for path in ("/generate", "/generate/stream"):
        response = server.client.post(path, json={"prompt": "a", "max_tokens": 1} | change)
        assert response.status_code == 400
        body = response.json()
        assert body["error"].startswith(named)
        assert (body["category"], body["recoverable"], body["status"]) == ("User", False, "error")


def test_errors_of_paths(server):
    response = server.client.post("/generate/stream", json={"prompt": "a", "stream": False})
    assert response.json()["error"].startswith("stream: got false")
    response = server.client.get("/status/none")
    assert response.status_code == 404
    assert response.json()["error"] == (
        "request: got 'none', expected the id of one that runs or ended in the last 300 s"
    )
    assert httpx.get(f"{server.url}/status/none").status_code == 401


class Output:
    """The part of an output that a result is made of."""

    def __init__(self, num_tokens, finish_reason="stop", error=None):
        self.finished = finish_reason is not None
        self.outputs = [self]
        self.token_ids = list(range(num_tokens))
        self.text = "x"
        self.finish_reason = finish_reason
        self.error = error


def test_tokens_that_came_at_once_have_an_event_each():
    progress = native.Progress("a")

    def event(token, text, reason=None):
        return {"request_id": "a", "token": token, "text": text, "finished": bool(reason), "finish_reason": reason}

    assert progress.add(Output(3, None)) == [event(0, ""), event(1, ""), event(2, "x")]
    assert progress.add(Output(2, "length")) == [event(0, ""), event(1, "x", "length")]
    assert progress.value()["tokens"] == [0, 1, 2, 0, 1]
    # A text that was held back, for it might have begun a stop string, comes without a token.
    assert native.Progress("a").add(Output(0)) == [event(None, "x", "stop")]


def test_a_request_that_fails():
    progress = native.Progress("a")
    with pytest.raises(ApiError, match="broken"):
        progress.add(Output(1, "error", "broken"))
    assert progress.value() == {
        "request_id": "a",
        "text": "x",
        "tokens": [0],
        "finished": True,
        "finish_reason": "failed",
    }


def test_results_are_bounded(monkeypatch):
    """In number, in tokens and in time."""
    results = native.Results(retention=300.0)

    def record(name, num_tokens=1):
        with results.recorded(ANONYMOUS, name) as progress:
            progress.add(Output(num_tokens))

    def kept():
        return [name for name in names if results.find(ANONYMOUS, name)]

    names = [f"n{number}" for number in range(2500)]
    for name in names:
        record(name)
    assert kept() == names[-native.MAX_RESULTS :]
    record(names[-1])
    assert len(kept()) == native.MAX_RESULTS
    monkeypatch.setattr(native, "MAX_RESULT_TOKENS", 1500)
    record(names[0], 1400)
    assert kept() == [names[0], *names[-100:]]
    later = time.monotonic() + 301
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert kept() == []
    record(names[0])
    assert kept() == names[:1]
