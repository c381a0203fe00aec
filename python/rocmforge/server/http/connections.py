"""Limits of connections: their number, and the time in which a request must arrive."""

import asyncio
import logging
import resource
from pathlib import Path
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rocmforge.server.config import ServerConfig

logger = logging.getLogger("rocmforge.server")

# Clients and proxies keep idle connections for 5 to 60 s. Who closes one first must be the client: a request that the
# server's close crosses on its way is lost.
KEEP_ALIVE_SECONDS = 75
# Bytes of a body that must arrive in each second beyond its time.
SLOWEST = 16 << 10
# Most connections, if the limit of open files allows them.
MOST_CONNECTIONS = 4096
# Share of the free descriptors that connections take; models, logs and threads have the others.
SHARE = 0.75
_BUSY = b"all connections are in use (max_connections); come back in a moment"
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"
    b"Retry-After: 5\r\nConnection: close\r\n\r\n%b" % (len(_BUSY), _BUSY)
)


def connection_limit(config: ServerConfig) -> int:
    """Returns the most connections. It raises this process's limit of open files as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        soft = hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if config.max_connections is not None:
        return config.max_connections
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    free = soft - len(list(Path("/proc/self/fd").iterdir()))
    return max(1, min(MOST_CONNECTIONS, int(free * SHARE)))


class Waiting:
    """The connections that wait for a request or the rest of one, the longest-waiting one first.

    Args:
        limit: The most connections.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.connections: dict[Connection, None] = {}

    def make_room(self) -> bool:
        """Closes the connection that has waited longest; returns whether there was one."""
        for connection in self.connections:
            connection.end()
            return True
        return False


class Connection(H11Protocol):
    """One connection.

    A request has to come in a bounded time. Where there are too many connections, one that waits for a request makes
    room for the next.
    """

    waiting: Waiting
    settings: ServerConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase: str | None = None
        self._since = 0.0
        self._received = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > self.waiting.limit and not self.waiting.make_room():
            transport.write(BUSY)
            transport.close()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._enter(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handles bytes of a request."""
        self._received += len(data)
        super().data_received(data)
        self._watch()

    def _unsupported_upgrade_warning(self) -> None:
        """Says nothing: Java's HTTP client offers HTTP/2 (`Upgrade: h2c`) with each request, and takes HTTP/1.1."""

    def on_response_complete(self) -> None:
        """Begins to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def end(self) -> None:
        """Closes the connection now, whatever it waits for."""
        self._enter(None)
        self.connections.discard(self)
        self.transport.abort()

    def _watch(self) -> None:
        """Notes what the connection waits for now."""
        if self.transport.is_closing():
            self._enter(None)
            return
        answered = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state is h11.SEND_BODY:
            phase: str | None = "rest" if answered else "body"
        elif not answered:
            phase = None
        elif self.cycle is not None and not self.conn.trailing_data[0]:
            phase = "next"
        else:
            phase = "head"
        if phase != self._phase:
            self._enter(phase)

    def _enter(self, phase: str | None) -> None:
        self._phase = phase
        self.waiting.connections.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if phase is not None:
            self._since, self._received = self.loop.time(), 0
            self.waiting.connections[self] = None
            self._deadline = self.loop.call_at(self._due(), self._expire)

    def _due(self) -> float:
        seconds = {
            "next": KEEP_ALIVE_SECONDS,
            "head": self.settings.header_timeout,
            "body": self.settings.body_timeout + self._received / SLOWEST,
            # The body was refused before it arrived. The client may not read the answer before it has sent the rest.
            "rest": self.settings.body_timeout,
        }
        return self._since + seconds[self._phase or "next"]

    def _expire(self) -> None:
        """Closes the connection, unless more of its body has arrived meanwhile."""
        if self.loop.time() < self._due():
            self._deadline = self.loop.call_at(self._due(), self._expire)
            return
        if self._phase == "body" or self.conn.trailing_data[0]:
            self._refuse()
        self._enter(None)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _refuse(self) -> None:
        """Answers that the request took too long, if no answer has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = b"the request did not come in its time (header_timeout, body_timeout)"
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(text))),
            ("connection", "close"),
        ]
        for event in (
            h11.Response(status_code=408, headers=headers, reason=b"Request Timeout"),
            h11.Data(data=text),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")


def protocol(config: ServerConfig, waiting: Waiting) -> type[Connection]:
    """Returns the class of the connections of one server."""
    return type("ServerConnection", (Connection,), {"waiting": waiting, "settings": config})
