"""A server outlives the process of its engine."""

import os
import re
import signal
import threading
import time

import pytest
from server_process import serving

ENDLESS = {"prompt": "ab", "max_tokens": 60_000, "ignore_eos": True}
SHORT = {"prompt": "ab", "max_tokens": 5, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def server(long_model, tmp_path):
    with serving(tmp_path, long_model, "--num-threads", 1, "--isolate", "--watchdog", 2, "--device", "cpu") as server:
        yield server


def child(server):
    """The engine's process, as the log names it."""
    return int(re.findall(r"the engine runs in process (\d+)", server.log())[-1])


def health(server):
    return server.client.get("/health")


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGABRT, "abort"), (signal.SIGSTOP, "hang")])
def test_requests_fail_and_later_ones_do_not(server, number, reason):
    before = server.client.post("/v1/completions", json=SHORT).json()["choices"]
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(server.client.post("/v1/completions", json=ENDLESS)))
    with server.client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        waiting.start()
        while server.stats()["num_running"] < 2:
            time.sleep(0.01)
        os.kill(child(server), number)
        rest = list(lines)
    # The stream ends with an error, and without the mark of an end.
    assert '"type":"service_unavailable_error"' in [line for line in rest if line][-1]
    assert "data: [DONE]" not in rest
    waiting.join()
    assert (answers[0].status_code, int(answers[0].headers["Retry-After"]) > 0) == (503, True)
    assert "another one is being started" in answers[0].json()["error"]["message"]
    deadline = time.monotonic() + 30
    while (state := health(server)).status_code != 200:
        assert (state.status_code, state.headers["Retry-After"]) == (503, "5")
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert server.client.post("/v1/completions", json=SHORT).json()["choices"] == before
    metrics = server.client.get("/metrics").text
    counts = re.findall(r'^rocmforge:engine_restarts_total\{.*reason="(\w+)"\} (\S+)$', metrics, re.MULTILINE)
    assert {name: float(count) for name, count in counts if float(count)} == {reason: 1.0}


def test_health_says_that_the_engine_comes_back(server):
    """Each death within ten minutes makes the next start wait longer: time enough to look."""
    reasons = set()
    for _ in range(3):
        while health(server).status_code != 200:
            time.sleep(0.02)
        os.kill(child(server), signal.SIGKILL)
        while (state := health(server)).status_code == 200:
            time.sleep(0.005)
        reasons.add(state.json()["reason"])
        refused = server.client.post("/v1/completions", json=SHORT)
        assert refused.status_code in (200, 503)
        assert server.client.get("/live").status_code == 200
        assert server.client.get("/metrics").status_code == 200
    while health(server).status_code != 200:
        time.sleep(0.02)
    assert "the process of the engine has died; another one is being started" in reasons
