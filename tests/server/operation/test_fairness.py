"""Clients beside each other on a real server: shares, deadlines, what waits, and what times tell of others' prompts."""

import contextlib
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from rocmforge.server.answers.pace import Pace
from server_process import serving

KEYS = {"many": "key-of-many", "one": "key-of-one"}
FLAGS = ["--num-threads", 1, "--api-key", KEYS["many"], "--api-key", KEYS["one"]]


def as_client(name):
    return {"x-api-key": KEYS[name]}


@pytest.fixture(scope="module")
def server(long_model, tmp_path_factory):
    """A server with two keys, of a tiny model whose prompts may be long: long for a CPU, a GPU would not feel it."""
    limits = ["--device", "cpu", "--max-num-seqs", 8, "--max-num-batched-tokens", 512]
    with serving(tmp_path_factory.mktemp("log"), long_model, *FLAGS, *limits, headers=as_client("one")) as server:
        yield server


def prompt(number, length):
    """Token ids that no other number shares a block of."""
    return [1 + (number * 7919 + i * (1 + number % 5)) % 200 for i in range(length)]


def first_token(server, client, number, length):
    """Seconds until a streamed answer's first event, and the prompt tokens that were cached."""
    body = {
        "prompt": prompt(number, length),
        "max_tokens": 1,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.perf_counter()
    first = None
    with server.client.stream("POST", "/v1/completions", json=body, headers=as_client(client)) as response:
        response.raise_for_status()
        lines = []
        for line in response.iter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - started
                lines.append(line)
    return first, httpx.Response(200, text=lines[-1][6:]).json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_times_tell_nothing_of_another_clients_prompts(server):
    """A prompt that another key has just sent takes as many steps as one that nobody has, one's own takes fewer."""

    def steps(client, number):
        before = server.stats()["engine_steps"]
        _, cached = first_token(server, client, number, 2048)
        return server.settled()["engine_steps"] - before, cached

    for number in range(0, 4, 2):
        steps("many", number)
        others, fresh, own = steps("one", number), steps("one", number + 1), steps("one", number)
        assert others == fresh, (others, fresh)
        assert fresh[1] == 0
        assert own[0] < fresh[0], (own, fresh)
        assert own[1] > 2000


def test_one_clients_many_prompts_do_not_hold_up_another(server):
    """Timed: with fifty long prompts of one client before it, another's first token takes at most twice as long."""
    length = 2048
    alone = statistics.median(first_token(server, "one", 1000 + i, length)[0] for i in range(5))
    body = {"max_tokens": 1, "ignore_eos": True}
    with ThreadPoolExecutor(50) as pool, httpx.Client(base_url=server.url, timeout=240) as client:

        def send(number):
            json = body | {"prompt": prompt(number, length)}
            return client.post("/v1/completions", json=json, headers=as_client("many")).status_code

        crowd = [pool.submit(send, 2000 + number) for number in range(50)]
        while server.stats()["num_waiting"] < 25:
            assert not any(each.done() and each.result() != 200 for each in crowd)
        beside = [first_token(server, "one", 3000 + i, length)[0] for i in range(5)]
        assert server.stats()["num_waiting"] > 0, "the crowd was gone before the end"
        assert {each.result() for each in crowd} == {200}
    assert statistics.median(beside) <= 2 * alone + 0.05, (beside, alone)
    server.settled()


@contextlib.contextmanager
def busy(server, count):
    """Fills the eight places with long answers of one client and lets `count` prompts of its wait behind them."""
    endless = {"prompt": prompt(1, 16), "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    before = server.stats()
    with contextlib.ExitStack() as stack:
        for number in range(8 + count):
            body = endless | {"prompt": prompt(5000 + number, 16 if number < 8 else 1024)}
            client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60, headers=as_client("one")))
            stack.enter_context(client.stream("POST", "/v1/completions", json=body)).raise_for_status()
        deadline = time.monotonic() + 30
        while (stats := server.stats())["num_running"] < 8 or stats["num_waiting"] < count:
            assert time.monotonic() < deadline, (before, stats)
            time.sleep(0.01)
        yield
    server.settled()


def test_what_waits_says_what_for(server):
    with busy(server, 2):
        listed = server.client.get("/v1/engine/requests").json()["requests"]
        assert [each["waiting_for"] for each in listed] == [None] * 8 + ["sequence_slots"] * 2
        # A client without a place takes one.
        first_token(server, "many", 9000, 64)


def test_what_runs_says_what_was_cached_and_why_no_more(server):
    """Nothing is said of what another client has."""
    answers = {}
    first_token(server, "one", 150, 256)
    for client, length in (("one", 256), ("one", 300), ("many", 256)):
        body = {"prompt": prompt(150, length), "max_tokens": 10_000, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body, headers=as_client(client)) as response:
            # A reader that nobody holds would close the stream.
            lines = response.iter_lines()
            next(lines)
            (listed,) = server.client.get("/v1/engine/requests", headers=as_client(client)).json()["requests"]
            answers[client, length] = listed["cached_tokens"], listed["miss"]
        server.settled()
    assert answers == {("one", 256): (240, "last_block"), ("one", 300): (256, "new"), ("many", 256): (0, "new")}


def test_expired_while_waiting_is_never_computed(server):
    """The time of the earlier of both deadlines ends a request that waits; none of its tokens is counted."""
    with busy(server, 1):
        before = server.stats()["prompt_tokens"]
        body = {"prompt": prompt(7000, 512), "max_tokens": 4, "timeout": 60}
        answer = server.client.post("/v1/completions", json=body, headers={"x-request-timeout": "0.2"}).json()
        assert answer["choices"][0]["finish_reason"] == "timeout"
        assert answer["usage"]["completion_tokens"] == 0
        assert server.stats()["prompt_tokens"] == before


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "inf"])
def test_wrong_deadline_names_the_header(server, given):
    refused = server.client.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Timeout": given})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "X-Request-Timeout"


ENDPOINTS = {
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
    "/api/generate": {"prompt": "a", "raw": True},
    "/generate": {"prompt": "a"},
}


def test_late_requests_are_refused_early(long_model, tmp_path):
    """Behind prompts that take seconds a millisecond is too little; without a deadline, or with time, all are taken."""
    template = tmp_path / "template.txt"
    template.write_text("{% for message in messages %}{{ message.content }} {% endfor %}")
    arguments = [*FLAGS, "--max-num-seqs", 1, "--max-num-batched-tokens", 64, "--chat-template", template]
    with serving(tmp_path, long_model, *arguments, headers=as_client("one")) as server:
        name = server.client.get("/v1/models").json()["data"][0]["id"]
        # Two readings of the engine's pace.
        first_token(server, "one", 1, 2048)
        time.sleep(1.1)
        first_token(server, "one", 2, 2048)
        with contextlib.ExitStack() as stack:
            for number in range(4):
                body = {"prompt": prompt(10 + number, 2048), "max_tokens": 50_000, "ignore_eos": True, "stream": True}
                client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60, headers=as_client("one")))
                stack.enter_context(client.stream("POST", "/v1/completions", json=body)).raise_for_status()
            for path, body in ENDPOINTS.items():
                json = {"model": name} | body if path != "/generate" else body
                refused = server.client.post(path, json=json, headers={"X-Request-Timeout": "0.001"})
                assert refused.status_code == 429, (path, refused.text)
                assert 1 <= int(refused.headers["retry-after"]) <= 60
                error = refused.json()["error"]
                assert "timeout: got 0.001 s" in (error if isinstance(error, str) else error["message"])
            before = server.stats()["num_waiting"]
            # Nobody of another client waits, so nothing surely holds it up.
            other = {"prompt": "a", "max_tokens": 1, "timeout": 0.001}
            assert server.client.post("/v1/completions", json=other, headers=as_client("many")).status_code == 200
            assert server.stats()["num_waiting"] == before
        server.settled()


def test_pace_counts_the_fastest_rate():
    pace = Pace()
    assert pace.least_wait([1000]) == 0, "nothing is known yet"
    for now, tokens in [(0.0, 0), (0.5, 900), (2.0, 1000), (3.0, 1100), (60.0, 1100), (61.0, 2100)]:
        pace.read(tokens, now)
    # 500 and 100 tokens per second, then an idle minute, then 1000; twice that is assumed.
    assert pace.least_wait([1000, 3000]) == 2.0
