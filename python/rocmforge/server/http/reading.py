"""Reads the bodies of requests: bounded before they are parsed, large ones off the event loop."""

import asyncio
import functools
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pydantic_core
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from rocmforge.server.errors import ApiError, from_validation
from rocmforge.server.http.threads import READING

# Bodies of up to this many bytes are parsed on the event loop, in a few milliseconds.
SMALL = 32 << 10
# Bytes to count at a time, between which other threads get the GIL.
PIECE = 256 << 10
# Most values of each kind in a body, outside strings. Agents send a few thousand of each.
LIMITS = {"values": (b",", 1 << 20), "fields of objects": (b":", 1 << 17), "objects and lists": (b"{[", 1 << 16)}
# Most escapes in the strings of a body, since each is parsed by itself.
MAX_ESCAPES = 1 << 20
# Most entries of lists and objects that are processed one by one.
MAX_ENTRIES = {
    "messages": 4_096,
    "input": 4_096,
    "tools": 4_096,
    "documents": 4_096,
    "stop": 1_024,
    "stop_sequences": 1_024,
    "stop_token_ids": 1 << 16,
    "logit_bias": 1 << 16,
}
_BOM = b"\xef\xbb\xbf"
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


class BodyRoute(APIRoute):
    """A route whose body is read by `read_body`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Makes the function that answers a request."""
        answer = super().get_route_handler()
        kind: Any = None if self.body_field is None else self.body_field.field_info.annotation
        form: TypeAdapter[Any] | None = None if kind is None else TypeAdapter(kind)

        async def handler(request: Request) -> Response:
            if form is not None:
                check_content_type(request.headers)
            return await answer(request if form is None else _BodyRequest(request.scope, request.receive, form))

        return handler


class _BodyRequest(Request):
    """A request whose JSON is validated as the body of its route."""

    def __init__(self, scope: Scope, receive: Receive, form: TypeAdapter[Any]) -> None:
        super().__init__(scope, receive)
        self._form_of_body = form

    async def json(self) -> Any:
        """Returns the body.

        Raises:
            ApiError: It is not JSON, has too many values, or does not fit.
        """
        content = await self.body()
        # Only the parsed value is kept, not the bytes.
        self._body = b""
        read = functools.partial(read_body, content, self._form_of_body)
        if len(content) <= SMALL:
            return read()
        client = self.state.client
        address = self.scope.get("client") or ("",)
        return await asyncio.get_running_loop().run_in_executor(READING.of(client.salt or address[0]), read)


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


def read_body(content: bytes, form: TypeAdapter[Any]) -> Any:
    """Returns a body, validated as a type.

    Raises:
        ApiError: It is not JSON, has too many values, or does not fit.
    """
    _check_size(content)
    content = content.removeprefix(_BOM)
    try:
        value = pydantic_core.from_json(content)
    except ValueError as error:
        try:
            # Histories of tool calls may contain invalid output of models: unpaired surrogates, and deeper values.
            value = json.loads(content.decode())
        except (ValueError, RecursionError):
            raise ApiError(400, f"body: it is not JSON that can be read: {error}", param="body") from error
    if isinstance(value, dict):
        _check_entries(value)
    try:
        return form.validate_python(value)
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors(include_url=False)]
        raise from_validation(faults, value) from error


def _check_size(content: bytes) -> None:
    """Refuses a body whose values would take too much time or memory to parse.

    Raises:
        ApiError: It is one.
    """
    view = memoryview(content)
    pieces = [bytes(view[at : at + PIECE]) for at in range(0, len(content), PIECE)]
    escapes = sum(piece.count(b"\\") for piece in pieces)
    if escapes > MAX_ESCAPES:
        raise _too_many("escapes in texts", escapes, MAX_ESCAPES)
    # This quick count includes marks in strings; few bodies exceed the bound.
    if all(sum(piece.count(mark) for piece in pieces for mark in marks) <= most for marks, most in _MARKS):
        return
    found = _count_outside_texts(pieces)
    for name, (marks, most) in LIMITS.items():
        count = int(sum(found[mark] for mark in marks))
        if count > most:
            raise _too_many(name, count, most)


_MARKS = [([bytes([mark]) for mark in marks], most) for marks, most in LIMITS.values()]


def _count_outside_texts(pieces: list[bytes]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Counts each byte of a JSON text outside its strings."""
    found = np.zeros(256, np.int64)
    in_text, escaping = False, False
    for piece in pieces:
        letters = np.frombuffer(piece, np.uint8)
        quotes = letters == _QUOTE
        backslashes = letters == _BACKSLASH
        if escaping or backslashes.any():
            # A quote after an odd number of backslashes is part of its string.
            index = np.arange(len(letters))
            other = np.maximum.accumulate(np.where(backslashes, -1, index))
            run = np.where(other < 0, index + 1 + escaping, index - other)
            before = np.concatenate(([int(escaping)], run[:-1]))
            quotes &= before % 2 == 0
            escaping = bool(run[-1] % 2)
        inside = (np.cumsum(quotes) + in_text) % 2 == 1
        found += np.bincount(letters[~inside], minlength=256)
        in_text = bool(inside[-1])
    return found


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


def _too_many(what: str, got: int, most: int) -> ApiError:
    return ApiError(400, f"body: got {got} {what}, expected at most {most}; send less at once", param="body")
