"""A stand-in for the Hugging Face hub on loopback: the part of its protocol that downloads use."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAUSE_SECONDS = 60.0


@dataclass
class Hub:
    """The repositories that are served, and what happened."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    corrupt: bool = False
    """Whether contents differ from their checksums in one byte."""
    cut_after: int | None = None
    """Bytes of a content after which the connection ends, once."""
    pause_after: int | None = None
    """Bytes of a content after which it waits until `released` is set, once."""
    released: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and `Range` of each request."""
    tokens: set[str | None] = field(default_factory=set)
    url: str = ""

    def ranges(self) -> list[str | None]:
        """Returns `Range` of each download of a content."""
        return [range_ for method, path, range_ in self.requests if method == "GET" and "/resolve/" in path]


@contextlib.contextmanager
def hub_server(**repos: dict[str, bytes]) -> Iterator[Hub]:
    """Serves repositories named `owner/NAME`, each with its files."""
    hub = Hub({f"owner/{name}": files for name, files in repos.items()})

    class Handler(_Handler):
        pass

    Handler.hub = hub
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.hub.requests.append((self.command, path, self.headers["Range"]))
        self.hub.tokens.add(self.headers["Authorization"])
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
            self._info(found[1])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._content(found[1], found[2])
        else:
            self._error(404, "EntryNotFound")

    def _info(self, repo: str) -> None:
        if (files := self._files(repo)) is None:
            return
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": hashlib.sha1(content).hexdigest(),
                "lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134},
            }
            for name, content in files.items()
        ]
        body = {"id": repo, "sha": COMMIT, "private": False, "downloads": 0, "likes": 0, "tags": []}
        self._send(200, json.dumps(body | {"siblings": siblings}).encode(), {"Content-Type": "application/json"})

    def _content(self, repo: str, name: str) -> None:
        if (files := self._files(repo)) is None:
            return
        if name not in files:
            self._error(404, "EntryNotFound")
            return
        content = files[name]
        etag = hashlib.sha256(content).hexdigest()
        headers = {
            "ETag": f'"{etag}"',
            "X-Linked-Etag": f'"{etag}"',
            "X-Linked-Size": str(len(content)),
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if self.hub.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if (wanted := self.headers["Range"]) is None:
            self._send(200, content, headers)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206, content[start:], headers)

    def _files(self, repo: str) -> dict[str, bytes] | None:
        if repo in self.hub.gated:
            self._error(403, "GatedRepo")
        elif repo not in self.hub.repos:
            self._error(401, "RepoNotFound")
        return None if repo in self.hub.gated else self.hub.repos.get(repo)

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        is_content = status in (200, 206) and "/resolve/" in self.path
        if self.hub.cut_after is not None and is_content:
            body, self.hub.cut_after = body[: self.hub.cut_after], None
            self.close_connection = True
        if self.hub.pause_after is not None and is_content:
            start, body, self.hub.pause_after = body[: self.hub.pause_after], body[self.hub.pause_after :], None
            self.wfile.write(start)
            self.hub.released.wait(PAUSE_SECONDS)
        # A client may have left meanwhile.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)
