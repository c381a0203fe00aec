"""A server outlives the process of its engine."""

import os
import re
import signal
import threading
import time

import pytest
from server_process import serving
from stand_in import STAND_IN, needs_stand_in, share_kernels

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
    outlives(server, lambda: os.kill(child(server), number), reason, "another one is being started")


@needs_stand_in
def test_a_lost_device_comes_back(long_model, tmp_path):
    """A GPU whose driver answers that all is gone: the process of the engine ends itself, and another one takes the
    device."""
    lost = tmp_path / "lost"
    options = ["--device", "gpu", "--kv-cache-memory", 8 << 20, "--max-num-seqs", 4, "--max-num-batched-tokens", 64]
    settings = {"ROCMFORGE_GPU_PLATFORM": "amd", "ROCMFORGE_GPU_LIBRARY": str(STAND_IN)}
    settings |= {"ROCMFORGE_CACHE_DIR": str(tmp_path), "HIPSIM_TARGET": "cpu-wave32", "HIPSIM_LOST": str(lost)}
    share_kernels(tmp_path)
    with serving(tmp_path, long_model, *options, **settings) as server:
        outlives(server, lost.touch, "device", "was lost: hip")
        assert not lost.exists()


def outlives(server, end, reason, message):
    """Checks that requests fail with a message when `end` is called, and that later ones are answered as before."""
    before = server.client.post("/v1/completions", json=SHORT).json()["choices"]
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(server.client.post("/v1/completions", json=ENDLESS)))
    with server.client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        waiting.start()
        while server.stats()["num_running"] < 2:
            time.sleep(0.01)
        end()
        rest = list(lines)
    # The stream ends with an error, and without the mark of an end.
    assert '"type":"service_unavailable_error"' in [line for line in rest if line][-1]
    assert "data: [DONE]" not in rest
    waiting.join()
    assert (answers[0].status_code, int(answers[0].headers["Retry-After"]) > 0) == (503, True)
    assert message in answers[0].json()["error"]["message"]
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
