"""Reads the bodies of requests: bounded before they are parsed, large ones off the event loop."""

import asyncio
import functools
import re
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from rocmforge._rocmforge import JsonBody
from rocmforge.errors import InvalidRequestError, OutOfMemoryError
from rocmforge.server.errors import RETRY_AFTER, ApiError, from_engine, from_validation
from rocmforge.server.http.threads import READING

# Bodies of up to this many bytes are parsed on the event loop, in a few milliseconds.
SMALL = 32 << 10
# A client has a few bodies of more bytes at a time.
LARGE = 1 << 20
# A body of a few images comes at once. Beyond these bytes, the event loop pauses after each piece.
AT_ONCE = 8 << 20
PIECE = 256 << 10
PAUSE_SECONDS = 0.002
# Most seconds after such a body until the client's next one.
LONGEST_REST = 0.2
# Most values of each kind in a body. Agents send a few thousand of each.
LIMITS = {"max_values": 1 << 20, "max_fields": 1 << 17, "max_containers": 1 << 16, "max_escapes": 1 << 20}
# Most entries of lists and objects that are processed one by one.
MAX_ENTRIES = {
    "messages": 4_096,
    "input": 4_096,
    "tools": 4_096,
    "documents": 4_096,
    "stop": 1_024,
    "stop_sequences": 1_024,
    "stop_token_ids": 1 << 14,
    "logit_bias": 1 << 14,
}


class BodyRoute(APIRoute):
    """A route whose body is read by `read_body`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Makes the function that answers a request."""
        answer = super().get_route_handler()
        kind: Any = None if self.body_field is None else self.body_field.field_info.annotation
        adapter: TypeAdapter[Any] | None = None if kind is None else TypeAdapter(kind)

        async def handler(request: Request) -> Response:
            if adapter is not None:
                check_content_type(request.headers)
            return await answer(request if adapter is None else _BodyRequest(request.scope, request.receive, adapter))

        return handler


class _BodyRequest(Request):
    """A request whose JSON is validated as the body of its route."""

    def __init__(self, scope: Scope, receive: Receive, adapter: TypeAdapter[Any]) -> None:
        super().__init__(scope, receive)
        self._adapter = adapter
        self._value: Any = None

    async def body(self) -> Any:
        """Reads the body, and returns whether there is one.

        Raises:
            ApiError: It is not JSON, has too many values, or does not fit.
        """
        content = JsonBody()
        address = self.scope.get("client") or ("",)
        client = self.state.client.salt or address[0]
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(aclosing(self.stream()))
            has_turn, pause_at = False, AT_ONCE
            async for piece in stream:
                size = len(content) + len(piece)
                if not has_turn and size > LARGE:
                    has_turn = True
                    await stack.enter_async_context(TURNS.turn(client))
                if size > pause_at:
                    pause_at += PIECE
                    await asyncio.sleep(PAUSE_SECONDS)
                content.push(piece)
            size = len(content)
            read = functools.partial(read_body, content, self._adapter)
            if size > SMALL:
                self._value = await asyncio.get_running_loop().run_in_executor(READING.of(client), read)
            elif size:
                self._value = read()
        return size > 0

    async def json(self) -> Any:
        """Returns the body that `body` has read."""
        return self._value


class Turns:
    """Lets each client hold a number of things at a time; further ones wait.

    After each, its place is empty for as long as it was held, so that one client cannot keep the event loop busy.

    Args:
        most: The number.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # How many hold or wait for each.
        self._clients: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncGenerator[None, None]:
        """Holds one of them while the block runs."""
        places, count = self._clients.get(client) or (asyncio.Semaphore(self._most), 0)
        self._clients[client] = places, count + 1
        try:
            await places.acquire()
        except asyncio.CancelledError:
            self._leave(client)
            raise
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            yield
        finally:
            loop.call_later(min(loop.time() - begun, LONGEST_REST), self._end, client)

    def _end(self, client: str) -> None:
        self._clients[client][0].release()
        self._leave(client)

    def _leave(self, client: str) -> None:
        places, count = self._clients.pop(client)
        if count > 1:
            self._clients[client] = places, count - 1


TURNS = Turns(4)
"""For bodies beyond `LARGE`, which are in memory until they are read. Of one that waits, no more is received."""


def check_content_type(headers: Headers) -> None:
    """Refuses a body without the content type JSON. `curl -d` sends a form's type, and so may a page of another site.

    Raises:
        ApiError: The request has a body, with another content type or none.
    """
    given = headers.get("content-type", "")
    kind = given.partition(";")[0].strip().lower()
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if has_body and not re.fullmatch(r"application/([\w.+-]+\+)?json", kind):
        raise ApiError(
            400,
            f"Content-Type: got {given[:100] or 'none'}, expected application/json; "
            "with curl: -H 'Content-Type: application/json'",
            param="Content-Type",
        )


def read_body(content: JsonBody, adapter: TypeAdapter[Any]) -> Any:
    """Returns a body, validated as a type.

    Raises:
        ApiError: It is not JSON, has too many values, or does not fit.
    """
    try:
        value = content.read(**LIMITS)
    except (InvalidRequestError, OutOfMemoryError) as error:
        raise from_engine(error, RETRY_AFTER) from error
    if isinstance(value, dict):
        _check_entries(value)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors(include_url=False)]
        raise from_validation(faults, value) from error


def _check_entries(value: dict[str, Any]) -> None:
    """Refuses a body with too many messages, tools and the like.

    Raises:
        ApiError: It has more.
    """
    for name, most in MAX_ENTRIES.items():
        entries = value.get(name)
        if not isinstance(entries, list | dict) or len(entries) <= most:
            continue
        # Token ids of one prompt are validated together.
        if name != "input" or isinstance(entries[0], dict):
            raise ApiError(400, f"{name}: got {len(entries)}, expected at most {most}", param=name)
