"""`examples/fastapi_app.py` under a real server and a real client."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def server(long_model):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", str(port), "fastapi_app:app"]
    environment = os.environ | {"ROCMFORGE_MODEL": str(long_model)}
    with subprocess.Popen([*command, "--log-level", "warning"], env=environment) as process:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            deadline = time.monotonic() + 60
            while True:
                try:
                    client.get("/stats")
                    break
                except httpx.TransportError:
                    assert process.poll() is None, "the server has ended"
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            yield client
        process.terminate()
        # S4: a server that was told to end does so.
        assert process.wait(timeout=30) in (0, -15)


def events(response):
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def settled(client):
    deadline = time.monotonic() + 20
    while (stats := client.get("/stats").json())["num_running"] or stats["num_waiting"] or stats["blocks_owned"]:
        assert time.monotonic() < deadline, stats
        time.sleep(0.005)
    return stats


def test_server_answers_at_once(server):
    """S2: also while it generates."""
    with server.stream("POST", "/generate", json={"prompt": "ab", "max_tokens": 200}) as response:
        next(events(response))
        assert server.get("/stats").status_code == 200
    settled(server)


def test_example_server_streams(server):
    body = {"prompt": "ab", "max_tokens": 20, "temperature": 0.0}
    with server.stream("POST", "/generate", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        pieces = [event["choices"][0] for event in events(response)]
    assert [piece["finish_reason"] for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1]["finish_reason"] in ("length", "stop")
    with server.stream("POST", "/generate", json=body) as response:
        again = "".join(event["choices"][0]["text"] for event in events(response))
    assert again == "".join(piece["text"] for piece in pieces) != ""
    settled(server)


def test_client_that_leaves_before_its_first_token(server):
    """A9: its prompt is not computed to the end, and nothing is generated."""
    before = settled(server)
    body = json.dumps({"prompt": "ab " * 8000, "max_tokens": 50})
    head = (
        f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((server.base_url.host, server.base_url.port)) as client:
        client.sendall((head + body).encode())
        deadline = time.monotonic() + 60
        while server.get("/stats").json()["engine_steps"] < before["engine_steps"] + 2:
            assert time.monotonic() < deadline
    after = settled(server)
    assert after["num_finished"]["abort"] == before["num_finished"]["abort"] + 1
    assert after["generated_tokens"] == before["generated_tokens"]


def test_server_without_a_model_says_so():
    """It says so in one line, without a traceback."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", "fastapi_app:app"]
    environment = {name: value for name, value in os.environ.items() if name != "ROCMFORGE_MODEL"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "ROCMFORGE_MODEL is not set" in done.stderr
    assert "Traceback" not in done.stderr


def test_disconnect_frees_blocks(server):
    """S20, K2: the client drops the connection in the middle of its stream."""
    before = settled(server)
    for _ in range(5):
        with server.stream("POST", "/generate", json={"prompt": "ab" * 20, "max_tokens": 200}) as response:
            next(events(response))
    after = settled(server)
    finished = {reason: after["num_finished"][reason] - count for reason, count in before["num_finished"].items()}
    assert sum(finished.values()) == 5
    assert finished["abort"] > 0


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "ab", "max_tokens": 0},
        {"prompt": "ab", "temperature": -1},
        {"prompt": "\ud800"},
        {"prompt": "\ud800" * 20_000},
    ],
    ids=["no tokens", "temperature", "lone surrogate", "many of them"],
)
def test_bad_requests_are_400(server, body):
    """S22, A8: with the engine's own message."""
    # The body is sent as ASCII: JSON may spell what UTF-8 cannot hold.
    response = server.post("/generate", content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "expected" in response.text
    settled(server)
