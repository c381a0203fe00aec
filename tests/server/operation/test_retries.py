"""Official clients come back when they are told to, and give up when their time is over."""

import contextlib
import threading

import anthropic
import httpx
import openai
import pytest
from server_process import serving, wait_until

SHORT = {"max_tokens": 3, "extra_body": {"ignore_eos": True}}
ENDLESS = {"prompt": "ab", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


@pytest.fixture
def server(long_model, tmp_path):
    """A server that runs one request and lets one wait."""
    template = tmp_path / "template.txt"
    template.write_text(TEMPLATE)
    places = ["--num-threads", 1, "--max-num-seqs", 1, "--max-queue-size", 1]
    with serving(tmp_path, long_model, *places, "--chat-template", template) as server:
        yield server


def ask_openai(url):
    """Its answer's length, and how often it came back."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=5) as client:
        raw = client.completions.with_raw_response.create(model="long", prompt="ab", **SHORT)
        return raw.parse().usage.completion_tokens, raw.retries_taken


def ask_anthropic(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=5) as client:
        messages = [{"role": "user", "content": "ab"}]
        raw = client.messages.with_raw_response.create(model="long", messages=messages, max_tokens=3)
        return raw.parse().usage.output_tokens, raw.retries_taken


@pytest.mark.parametrize("ask", [ask_openai, pytest.param(ask_anthropic, marks=pytest.mark.deep)])
def test_a_refused_client_comes_back(server, ask):
    """A full queue answers 429 with Retry-After; the client waits so long and is served, and its user sees nothing."""
    # Requests that ended lately say how soon there may be room.
    for _ in range(8):
        server.client.post("/v1/completions", json=ENDLESS | {"max_tokens": 1, "stream": False}).raise_for_status()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(server.url)))
    with contextlib.ExitStack() as full:
        for gauge in ("num_running", "num_waiting"):
            client = full.enter_context(httpx.Client(base_url=server.url, timeout=60))
            full.enter_context(client.stream("POST", "/v1/completions", json=ENDLESS)).raise_for_status()
            wait_until(lambda: server.stats()[gauge] == 1)  # noqa: B023 - it is done before the next one
        refused = server.client.post("/v1/completions", json=ENDLESS)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        asking.start()
        # It has been refused at least once when the room comes.
        asking.join(0.5)
        assert not answers
    asking.join(60)
    [(tokens, retries)] = answers
    assert 1 <= tokens <= 3
    assert retries >= 1
    server.settled()


def test_a_client_whose_time_is_over_ends_its_request(server):
    before = server.settled()["num_finished"]["abort"]
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=1, timeout=0.3)
    with client, pytest.raises(openai.APITimeoutError):
        client.completions.create(model="long", prompt="ab", max_tokens=60_000, extra_body={"ignore_eos": True})
    # The first request, and the one with which it tried again.
    wait_until(lambda: server.stats()["num_finished"]["abort"] == before + 2)
    server.settled()
