"""Clients that try to stall a server, and what others notice of it: `python hostile_clients.py ATTACK URL KEY`.

An attack lasts until its process ends. The process is its own, so that the attack does not slow the measurement.
"""

import contextlib
import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).parents[2]))

import hostile_grammars

ITEM = b'{"type":"message","role":"user","content":"a"}'
MESSAGE = b'{"role":"user","content":"a"}'
TOOL = b'{"type":"function","function":{"name":"a"}}'
STREAM = {"prompt": "ab", "max_tokens": 1_500, "ignore_eos": True, "stream": True}
# Pauses between two requests for `/live`.
LIVE_SECONDS = 0.02


def repeated(begin: bytes, item: bytes, count: int, end: bytes) -> bytes:
    """Returns a body of many items."""
    return begin + b",".join([item] * count) + end


def bodies(name: str) -> tuple[str, bytes]:
    """Returns the path and the body of an attack by bodies."""
    chat, text = "/v1/chat/completions", b'{"prompt":"'
    match name:
        case "80,000 items":
            return "/v1/responses", repeated(b'{"input":[', ITEM, 80_000, b"]}")
        case "4,000 items":
            return "/v1/responses", repeated(b'{"input":[', ITEM, 4_000, b"]}")
        case "1,000,000 messages":
            return chat, repeated(b'{"messages":[', MESSAGE, 1_000_000, b"]}")
        case "4,000 messages":
            return chat, repeated(b'{"messages":[', MESSAGE, 4_000, b"]}")
        case "100,000 tools":
            return chat, repeated(b'{"messages":[' + MESSAGE + b'],"tools":[', TOOL, 100_000, b"]}")
        case "16,000,000 token ids":
            return "/v1/completions", repeated(b'{"prompt":[', b"1", 16_000_000, b"]}")
        case "1,000,000 token ids":
            return "/v1/completions", repeated(b'{"prompt":[', b"1", 1_000_000, b"]}")
        case "16,000 biases":
            pairs = b",".join(b'"%d":1' % index for index in range(16_000))
            return "/v1/completions", b'{"prompt":"a","max_tokens":1,"logit_bias":{' + pairs + b"}}"
        case "16,000,000 brackets":
            return chat, b"[" * 16_000_000
        case "31 MB of text":
            return "/tokenize", text + b"word" * 7_900_000 + b'"}'
        case "2 MB of text":
            return "/tokenize", text + b"a" * 2_000_000 + b'"}'
        case "1,000,000 escapes":
            return "/tokenize", text + b"\\n" * 1_000_000 + b'"}'
    raise ValueError(name)


BODIES = (
    "80,000 items",
    "4,000 items",
    "1,000,000 messages",
    "4,000 messages",
    "100,000 tools",
    "16,000,000 token ids",
    "1,000,000 token ids",
    "16,000 biases",
    "16,000,000 brackets",
    "31 MB of text",
    "2 MB of text",
    "1,000,000 escapes",
)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BEGINNINGS = {
    "silent connections": b"",
    "half heads": b"GET /live HTTP/1.1\r\nHo",
    "half bodies": HEAD + b"Content-Length: 1000\r\n\r\n{",
}
NUM_CONNECTIONS = 300
NUM_THREADS = 8


def grammars() -> list[tuple[str, bytes]]:
    """Returns the path and the body of one request for each costly or impossible grammar."""
    asked = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
    bodies = (asked | {"structured_outputs": grammar} for grammar in hostile_grammars.ALL.values())
    return [("/v1/completions", json.dumps(body).encode()) for body in bodies]


def send(url: str, key: str, requests: list[tuple[str, bytes]]) -> None:
    """Sends these requests again and again, and leaves before every second answer."""
    address = urlsplit(url)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    leaves = False
    for path, body in itertools.cycle(requests):
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", path, body, headers)
            if not leaves:
                connection.getresponse().read()
        connection.close()
        leaves = not leaves


def occupy(url: str, beginning: bytes) -> None:
    """Opens connections without end, and keeps the last ones."""
    address = urlsplit(url)
    held: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((address.hostname, address.port), timeout=5))
            held[-1].sendall(beginning)
        if len(held) > NUM_CONNECTIONS:
            held.pop(0).close()
        time.sleep(0.001)


def abandon(url: str, key: str) -> None:
    """Asks for long streams without end, and leaves each."""
    address = urlsplit(url)
    body = json.dumps(STREAM).encode()
    request = HEAD + b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n%b" % (key.encode(), len(body), body)
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address.hostname, address.port), timeout=5) as left,
        ):
            left.sendall(request)
            left.recv(100)


def targets(name: str, url: str, key: str) -> Callable[[], None]:
    """Returns what one thread of an attack does."""
    if name in BEGINNINGS:
        return lambda: occupy(url, BEGINNINGS[name])
    if name == "abandoned streams":
        return lambda: abandon(url, key)
    return lambda: send(url, key, grammars() if name == "grammars" else [bodies(name)])


ATTACKS = (*BODIES, *BEGINNINGS, "abandoned streams", "grammars")


@contextlib.contextmanager
def attacked(name: str, url: str, key: str) -> Iterator[None]:
    """Runs an attack while the block runs; by the name `none` there is none."""
    if name == "none":
        yield
        return
    process = subprocess.Popen([sys.executable, __file__, name, url, key], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


Clock = Callable[[], float]


def cpu_clock(pid: int) -> Clock:
    """Returns a clock of the CPU time of a process. It stands still while other processes keep it from running."""
    ticks = os.sysconf("SC_CLK_TCK")

    def seconds() -> float:
        # The name before it may have spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    return seconds


def live_seconds(url: str, seconds: float, clock: Clock) -> list[float]:
    """Returns how long each request for `/live` took, on a connection of its own."""
    address = urlsplit(url)
    taken = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = clock()
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        connection.request("GET", "/live")
        assert connection.getresponse().status == 200
        connection.close()
        taken.append(clock() - started)
        time.sleep(LIVE_SECONDS)
    return taken


def stream_gaps(url: str, key: str, seconds: float, clock: Clock) -> list[float]:
    """Returns the times until a stream's first event, and between two. Another stream begins where one has ended."""
    address = urlsplit(url)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    gaps: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
        last = clock()
        connection.request("POST", "/v1/completions", json.dumps(STREAM), headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        while (line := answer.readline()) != b"data: [DONE]\n":
            assert line.startswith((b"data: {", b": ping")), line
            answer.readline()
            now = clock()
            gaps.append(now - last)
            last = now
            if time.monotonic() >= end:
                break
        connection.close()
    return gaps


def noticed(
    name: str, url: str, keys: tuple[str, str], seconds: float, clock: Clock = time.monotonic
) -> tuple[list[float], list[float]]:
    """Returns the times of `/live`, and those between two events of another client's stream, during an attack.

    Args:
        name: The attack.
        url: The server.
        keys: The attacker's, and that of the other client.
        seconds: How long both are measured.
        clock: What the times are measured by.
    """
    gaps: list[float] = []
    with attacked(name, url, keys[0]):
        other = threading.Thread(target=lambda: gaps.extend(stream_gaps(url, keys[1], seconds, clock)))
        other.start()
        live = live_seconds(url, seconds, clock)
        other.join()
    assert gaps, "the stream of the other client failed"
    return live, gaps


def quantile(values: list[float], share: float) -> float:
    """Returns the value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


if __name__ == "__main__":
    attack = targets(*sys.argv[1:4])
    for _ in range(2 if sys.argv[1] in BEGINNINGS else NUM_THREADS):
        threading.Thread(target=attack, daemon=True).start()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    threading.Event().wait()
