"""Connections on which half a request comes, or none: closed in time, and never in the way of others or of the end."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time

import pytest
from server_process import serving, wait_until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALF_BODY = HEAD + b"Content-Length: 1000\r\n\r\n{"
HALF_HEAD = b"GET /live HTTP/1.1\r\nHo"
LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = {"prompt": "ab", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
MAX_CONNECTIONS = 16


def connect(server, sent=b""):
    address = (server.client.base_url.host, server.client.base_url.port)
    connection = socket.create_connection(address, timeout=30)
    connection.sendall(sent)
    return connection


def received(connection):
    """All that comes until the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            found += piece
    return found


@pytest.fixture(scope="module")
def server(long_model, tmp_path_factory):
    limits = ("--header-timeout", 1, "--body-timeout", 1, "--max-connections", MAX_CONNECTIONS)
    with serving(tmp_path_factory.mktemp("log"), long_model, "--num-threads", 1, *limits) as server:
        yield server


def test_half_a_request_is_closed_in_time(server):
    """H7: a connection that sends nothing, half a head or half a body is closed; what came of it is answered by 408."""
    with connect(server) as silent, connect(server, HALF_HEAD) as head, connect(server, HALF_BODY) as body:
        assert received(silent) == b""
        assert received(head).startswith(b"HTTP/1.1 408 ")
        assert received(body).startswith(b"HTTP/1.1 408 ")


def test_an_offer_of_http_2_is_no_warning(server):
    """Java's client makes it with each request."""
    offer = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n\r\n"
    with connect(server, LIVE[:-2] + offer) as connection:
        assert received(connection).startswith(b"HTTP/1.1 200 ")
    assert "pgrade" not in server.log()
    assert "WebSocket" not in server.log()


@pytest.mark.parametrize(
    "head",
    [
        LIVE[:-2].replace(b"\r\n", b"\n") + b"Connection: close\n\n",
        LIVE[:-2] + b"X-Long: one\r\n two\r\nConnection: close\r\n\r\n",
    ],
    ids=["bare LF", "folded header"],
)
def test_older_forms_of_a_head_are_read(server, head):
    """RFC 9112 permits a bare LF (2.2), and a folded header as one line (5.2)."""
    with connect(server, head) as connection:
        assert received(connection).startswith(b"HTTP/1.1 200 ")


def test_drops_of_a_request_do_not_keep_it(server):
    """H7: the time is that of the whole head and of the whole body, not that since the last byte."""
    for begin in (HALF_HEAD, HALF_BODY):
        with connect(server, begin) as slow:
            started = time.monotonic()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                while time.monotonic() - started < 20:
                    slow.sendall(b"a")
                    time.sleep(0.1)
            assert time.monotonic() - started < 19


def test_a_long_body_that_goes_on_has_its_time(server):
    """H7: a slow link is no attack: 16 KiB in a second are enough."""
    body = json.dumps({"prompt": "ab", "max_tokens": 1, "user": "a" * 150_000}).encode()
    with connect(server, HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)) as slow:
        for at in range(0, len(body), 10_000):
            slow.sendall(body[at : at + 10_000])
            time.sleep(0.15)
        assert received(slow).startswith(b"HTTP/1.1 200 ")


def test_waiting_connections_make_room(server):
    """H7: however many connections wait, the next request is served."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(server))
        for begin in (b"", HALF_HEAD, HALF_BODY) * MAX_CONNECTIONS:
            stack.enter_context(connect(server, begin))
        with connect(server, LIVE) as other:
            assert other.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert received(first) == b""


def test_connections_that_are_served_are_not_closed(server):
    """H7: where all are being served, the next one is told when to come back."""
    server.settled()
    request = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(json.dumps(LONG)), json.dumps(LONG).encode())
    with contextlib.ExitStack() as stack:
        streams = []
        for _ in range(MAX_CONNECTIONS):
            # One after the other: each has begun before the next one needs room.
            streams.append(stack.enter_context(connect(server, request)))
            assert streams[-1].recv(65536).startswith(b"HTTP/1.1 200 ")
        with connect(server, LIVE) as refused:
            answer = received(refused)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: " in answer
        assert answer.endswith(b"come back in a moment")
        for stream in streams:
            assert stream.recv(65536)
    server.settled()


def test_two_lengths_end_the_connection(server):
    """H18: who reads the one and who reads the other see different requests behind it."""
    both = HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    with connect(server, both + LIVE) as connection:
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"Content-Length: got it with Transfer-Encoding" in answer


def test_the_request_line_is_a_part_of_the_head(server):
    """H19: a long address counts into max_header_bytes, in the path and behind it."""
    for target in ("/live?" + "a" * 33_000, "/" + "a" * 33_000):
        with connect(server, f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()) as long:
            assert received(long).startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


def test_descriptors_are_left_for_the_rest():
    """H7: the limit of connections follows from the limit of open files."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0}))\n"
        "from rocmforge.server import ServerConfig\n"
        "from rocmforge.server.http.connections import connection_limit\n"
        "print(connection_limit(ServerConfig()))"
    )
    for files, least, most in ((20, 1, 15), (64, 20, 50), (1_000, 600, 760), (4_096, 3_000, 3_080)):
        done = subprocess.run(
            [sys.executable, "-c", program.format(files)], capture_output=True, text=True, timeout=120, check=True
        )
        assert least <= int(done.stdout) <= most


@pytest.mark.parametrize("second", [False, True])
def test_nobody_holds_up_the_end(long_model, tmp_path, second):
    """H3: neither half a request nor a stream that nobody reads keeps the server from ending."""
    patience = 600 if second else 0.5
    with serving(tmp_path, long_model, "--num-threads", 1, "--shutdown-timeout", patience) as server:
        with contextlib.ExitStack() as stack:
            for begin in (b"", HALF_HEAD, HALF_BODY, LIVE):
                stack.enter_context(connect(server, begin))
            silent = socket.socket()
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect((server.client.base_url.host, server.client.base_url.port))
            stack.enter_context(silent)
            body = json.dumps(LONG | {"logprobs": 20}).encode()
            silent.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            wait_until(lambda: server.stats()["num_running"] > 0)
            server.process.send_signal(signal.SIGTERM)
            if second:
                wait_until(lambda: "SIGTERM: shutting down" in server.log())
                server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(20) == 0, server.log()
        assert "Traceback" not in server.log()
