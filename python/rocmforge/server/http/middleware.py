"""Gives every request an id and a client, and limits its size, on every route.

Plain ASGI, since a middleware of Starlette's own kind would copy each piece of a stream.
"""

import json
import logging
import re
import uuid

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocmforge.executors import EXECUTOR
from rocmforge.server.answers.generation import ANONYMOUS, Client
from rocmforge.server.config import ServerConfig
from rocmforge.server.errors import ApiError, body, is_anthropic, route_path
from rocmforge.server.http.access import Keys, Names
from rocmforge.server.http.threads import WORK
from rocmforge.server.page import FILES

logger = logging.getLogger("rocmforge.server")

# Paths that tell nothing but that the process lives, and the page, which asks its user for a key.
OPEN_PATHS = frozenset({"/live", *FILES})
# A name that a client gives its request: it goes into the log and back into a header.
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class Gate:
    """Names each request, identifies its client, and refuses unknown keys and requests that are too large.

    Args:
        app: The next application.
        config: The settings of the server.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._keys = Keys(config.keys(), config.admin_keys())
        self._names = Names((config.host, *config.allowed_host), config.cors_origin)
        self._max_body_bytes = config.max_body_bytes
        self._max_header_bytes = config.max_header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), route_path(scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        # Anthropic's clients read the other name.
        names = [b"x-request-id", b"request-id"] if is_anthropic(path) else [b"x-request-id"]
        is_head, begun = scope["method"] == "HEAD", False

        async def named(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], *((name, request_id.encode()) for name in names)]
            elif is_head:
                message = {**message, "body": b""}
            await send(message)

        scope.setdefault("state", {})["request_id"] = request_id
        try:
            self._check_head(scope, headers)
            client = scope["state"]["client"] = self._client(path, headers)
            limited = self._limited(headers, receive)
        except ApiError as error:
            await refuse(path, error, named)
            return
        # Without keys only the address distinguishes clients.
        sender = scope.get("client") or ("",)
        token = EXECUTOR.set(WORK.of(client.salt or sender[0]))
        try:
            # Every path that answers GET answers HEAD.
            await self._app({**scope, "method": "GET"} if is_head else scope, limited, named)
        except Exception:
            logger.exception("%s: the request failed", request_id)
            if begun:
                raise
            await refuse(path, ApiError(500, "the request failed; the log of the server says why"), named)
        finally:
            EXECUTOR.reset(token)

    def _check_head(self, scope: Scope, headers: Headers) -> None:
        # The HTTP parser stops an endless head. A head that comes in one piece may still exceed the limit.
        length = sum(len(name) + len(value) for name, value in headers.raw)
        length += len(scope["method"]) + len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if length > self._max_header_bytes:
            raise ApiError(431, f"head: got {length} bytes, expected at most {self._max_header_bytes}")
        if "transfer-encoding" in headers and "content-length" in headers:
            # Against request smuggling: a proxy that reads the other length sees different requests.
            raise ApiError(
                400,
                "Content-Length: got it with Transfer-Encoding, expected one of them",
                param="Content-Length",
                headers={"Connection": "close"},
            )
        encoding = headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise ApiError(
                415,
                f"Content-Encoding: got {encoding[:100]!r}, expected none: send the body as it is",
                param="Content-Encoding",
            )

    def _client(self, path: str, headers: Headers) -> Client:
        if path not in OPEN_PATHS:
            if not self._keys:
                self._names.check_host(headers)
                self._names.check_origin(headers)
            return self._keys.client(headers)
        if path != "/live" and not self._keys:
            self._names.check_host(headers)
        return ANONYMOUS

    def _limited(self, headers: Headers, receive: Receive) -> Receive:
        """Receives the body until it is larger than it may be."""
        limit = self._max_body_bytes
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise ApiError(
                400, f"Content-Length: got {length[:100]!r}, expected a number of bytes", param="Content-Length"
            )
        if int(length) > limit:
            raise too_large(limit)
        received = 0

        async def count() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limit:
                    raise too_large(limit)
            return message

        return count


def too_large(limit: int) -> ApiError:
    """The refusal of a body."""
    return ApiError(413, f"body: it has more bytes than the {limit} that are allowed (max_body_bytes)")


async def refuse(path: str, error: ApiError, send: Send) -> None:
    """Sends an error as the whole answer."""
    content = json.dumps(body(path, error)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(content)), **(error.headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status_code, "headers": raw})
    await send({"type": "http.response.body", "body": content})
