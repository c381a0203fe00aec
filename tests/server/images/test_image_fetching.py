"""Images from hosts: which may be asked, what may answer, and for how long."""

import contextlib
import http.server
import threading
import time

import pytest
from pictures import png
from rocmforge import InvalidRequestError
from rocmforge.server.images import fetching
from rocmforge.server.images.fetching import fetch

LOCAL = ("127.0.0.1",)
PICTURE = png()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the path says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.paths.append((self.path, self.headers["Host"]))
        name, _, value = self.path.partition("?")[0].strip("/").partition("/")
        match name:
            case "picture":
                self.answer(PICTURE)
            case "missing":
                self.answer(b"", status=404)
            case "to":
                self.answer(b"", status=302, headers={"Location": value})
            case "large":
                self.answer(bytes(1 << 20))
            case "endless":
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    while True:
                        self.wfile.write(bytes(1 << 16))
            case "short":
                self.answer(b"abc", headers={"Content-Length": "1000"})
            case "slow":
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for _ in range(200):
                        self.wfile.write(b"a")
                        self.wfile.flush()
                        time.sleep(0.05)
            case "silent":
                self.server.released.wait(30)
        self.close_connection = True

    def answer(self, content, status=200, headers=()):
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | dict(headers)).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Writes nothing."""


@pytest.fixture(scope="module")
def host():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.paths, server.released = [], threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.released.set()
        server.shutdown()


def url_of(host, path):
    return f"http://127.0.0.1:{host.server_port}/{path}"


def fetched(url, hosts=LOCAL, max_bytes=1 << 16, seconds=10.0):
    return fetch(url, hosts, max_bytes, time.monotonic() + seconds)


def test_an_allowed_host_is_asked(host):
    assert fetched(url_of(host, "picture")) == PICTURE
    assert host.paths[-1] == ("/picture", f"127.0.0.1:{host.server_port}")
    assert fetched(url_of(host, "picture?a=b#c")) == PICTURE
    assert host.paths[-1][0] == "/picture?a=b"


def test_redirects_stay_on_the_host(host):
    assert fetched(url_of(host, "to//picture")) == PICTURE
    assert fetched(url_of(host, "to//to//picture")) == PICTURE
    for target in (f"http://localhost:{host.server_port}/picture", "//example.com/a.png", "file:///etc/passwd"):
        asked = len(host.paths)
        with pytest.raises(InvalidRequestError, match=r"may not ask|redirects to another host|one of https"):
            fetched(url_of(host, f"to/{target}"), hosts=(*LOCAL, "localhost"))
        assert len(host.paths) == asked + 1
    with pytest.raises(InvalidRequestError, match="more than 3 redirects"):
        fetched(url_of(host, "to//to//to//to//to//picture"))


@pytest.mark.parametrize(
    ("url", "hosts", "said"),
    [
        ("http://127.0.0.1:1/a.png", (), "which this server may not ask"),
        ("https://example.com/a.png", ("example.org",), "--allowed-image-host"),
        ("https://sub.example.org/a.png", ("example.org",), "which this server may not ask"),
        ("http://127.0.0.1:1/a.png", ("*",), "private address"),
        ("http://localhost:1/a.png", ("*", "localhost"), "private address"),
        ("http://[::1]:1/a.png", ("*",), "private address"),
        ("http://[::ffff:127.0.0.1]:1/a.png", ("*",), "private address"),
        ("http://[64:ff9b::7f00:1]:1/a.png", ("*",), "private address"),
        ("http://[::127.0.0.1]:1/a.png", ("*",), "private address"),
        ("http://2130706433:1/a.png", ("*",), "private address|cannot be asked"),
        ("http://0x7f.1:1/a.png", ("*",), "private address|cannot be asked"),
        ("http://169.254.169.254/latest", ("*",), "private address"),
        ("http://10.0.0.1/a.png", ("*",), "private address"),
        ("http://0.0.0.0:1/a.png", ("*",), "private address"),
        ("http://user@127.0.0.1:1/a.png", LOCAL, "without a user's name"),
        ("ftp://127.0.0.1/a.png", LOCAL, "expected a data: URL, or one of https"),
        ("file:///etc/passwd", LOCAL, "expected a data: URL, or one of https"),
        ("http://127.0.0.1:99999/a.png", LOCAL, "expected a valid one"),
        ("http://[/a.png", LOCAL, "expected a valid one"),
        ("http://127.0.0.1/a\r\nHost: b", LOCAL, "one of https"),
        ("http:///a.png", LOCAL, "may not ask"),
        ("a.png", LOCAL, "one of https"),
    ],
)
def test_other_hosts_are_not_asked(url, hosts, said):
    with pytest.raises(InvalidRequestError, match=said):
        fetched(url, hosts)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("missing", "the status 404"),
        ("large", "more than 65536 bytes"),
        ("endless", "more than 65536 bytes"),
        ("short", "less than it says|IncompleteRead"),
        ("slow", "its time is over"),
        ("silent", "its time is over|timed out"),
    ],
)
def test_answers_are_bounded(host, path, said, monkeypatch):
    monkeypatch.setattr(fetching, "SILENT_SECONDS", 0.4)
    host.released.clear()
    started, threads = time.monotonic(), threading.active_count()
    with pytest.raises(InvalidRequestError, match=said):
        fetched(url_of(host, path), seconds=0.6)
    assert time.monotonic() - started < 5
    # Neither the watch nor a connection stays.
    host.released.set()
    deadline = time.monotonic() + 20
    while threading.active_count() > threads + 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_time_may_be_over_before(host):
    with pytest.raises(InvalidRequestError, match="its time is over"):
        fetched(url_of(host, "picture"), seconds=-1)


def test_a_host_that_cannot_be_reached():
    with pytest.raises(InvalidRequestError, match="cannot be asked for it"):
        fetched("http://127.0.0.1:1/a.png")
