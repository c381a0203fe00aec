"""Streamed answers, and requests whose client disconnects."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rocmforge.server.answers.generation import Generations
from rocmforge.server.errors import route_path

T = TypeVar("T")

# Seconds of silence after which a comment is sent: proxies close connections that are silent for a minute.
PING_SECONDS = 15.0
PING = b": ping\n\n"
EVENT_STREAM = "text/event-stream"

Submitted: TypeAlias = Coroutine[Any, Any, Generations]
"""A coroutine that submits a request to the engine, not yet started."""


class ClientLeft(Exception):  # noqa: N818 - it is not an error: nobody receives it
    """The client of a request has disconnected."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, and cancels `work` if the client disconnects before.

    Raises:
        ClientLeft: The client disconnected.
    """
    return await _first(asyncio.ensure_future(work), request.receive)


async def _first(work: "asyncio.Task[T]", receive: Receive) -> T:
    gone = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise ClientLeft
    finally:
        gone.cancel()
        if not work.done():
            work.cancel()
            # The work frees its resources before the answer ends.
            await asyncio.wait({work})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamResponse(Response):
    """An answer in pieces, each sent as it comes.

    The next piece is requested when the connection has room for it, so a slow client gets fewer and larger ones.
    If the client disconnects, the requests to the engine end.
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], generations: Generations, media_type: str, ping: bytes | None = None
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=media_type)
        # The length of the answer is not known.
        del self.headers["content-length"]
        self._pieces = pieces
        self._generations = generations
        self._ping = ping
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Sends the answer."""
        pinging = None if self._ping is None else asyncio.ensure_future(self._pings(self._ping, send))
        try:
            await _first(asyncio.ensure_future(self._send(send)), receive)
        except (ClientLeft, OSError):
            # The client is gone, so nobody receives an error.
            pass
        finally:
            await self._generations.aclose()
            if pinging is not None:
                pinging.cancel()

    async def _send(self, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            self._sent_at = time.monotonic()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for piece in pieces:
                self._sent_at = time.monotonic()
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pings(self, ping: bytes, send: Send) -> None:
        while True:
            silent = time.monotonic() - self._sent_at
            if silent >= PING_SECONDS and self._sent_at > 0:
                self._sent_at = time.monotonic()
                await send({"type": "http.response.body", "body": ping, "more_body": True})
                silent = 0.0
            await asyncio.sleep(PING_SECONDS - min(silent, PING_SECONDS) + 0.01)


class Answer(Protocol):
    """The answer to one request, in the format of an API."""

    def whole(self, submitted: Submitted, /) -> Coroutine[Any, Any, Response]:
        """Returns the complete answer at once."""

    def pieces(self, path: str, generations: Generations, /) -> AsyncGenerator[bytes, None]:
        """Yields the answer as it comes; the `path` of the request selects the format of errors."""


async def respond(
    request: Request,
    answer: Answer,
    submitted: Submitted,
    *,
    stream: bool,
    media_type: str = EVENT_STREAM,
    ping: bytes | None = PING,
) -> Response:
    """Answers a request, complete or in pieces.

    Raises:
        ClientLeft: The client disconnected before the complete answer, or before the engine accepted a stream.
        ApiError: The engine refuses the request.
    """
    if not stream:
        return await unless_gone(request, answer.whole(submitted))
    generations = await unless_gone(request, submitted)
    return StreamResponse(answer.pieces(route_path(request.scope), generations), generations, media_type, ping)


def compact_json(value: Any) -> bytes:
    """Returns JSON without white space, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(value: Any) -> bytes:
    """Returns a server-sent event."""
    return b"data: %b\n\n" % compact_json(value)


def named_event(value: dict[str, Any]) -> bytes:
    """Returns a server-sent event that has its type as its name."""
    return b"event: %b\n%b" % (value["type"].encode(), event(value))
