"""Errors as each API spells them: status, and a body in the form that its clients read."""

import itertools
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException

from rocmforge.errors import (
    EngineDeadError,
    InvalidRequestError,
    OutOfMemoryError,
    QueueFullError,
    RocmForgeError,
)


class ApiError(HTTPException):
    """An answer that is an error.

    Args:
        status: HTTP status.
        message: What was got, what was expected, and what to do.
        param: The parameter of the request that is to blame, if one is.
        code: A word for programs, where OpenAI has one.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code


# The type of an error in OpenAI's form and in Anthropic's, by status.
_TYPES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("service_unavailable_error", "overloaded_error"),
}

# Seconds after which to come back where nothing says how fast the server is.
RETRY_AFTER = 15

# Paths of the API of `rocmforge.server.native`.
_NATIVE = ("/generate", "/status/", "/cancel/")


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def body(path: str, error: ApiError) -> dict[str, Any]:
    """The body of an error for a request to `path`, in the form of that path's API."""
    openai, anthropic = _TYPES.get(error.status_code, _TYPES[500 if error.status_code >= 500 else 400])
    if is_anthropic(path):
        return {"type": "error", "error": {"type": anthropic, "message": error.detail}}
    if path.startswith("/api/"):
        return {"error": error.detail}
    if path.startswith(_NATIVE):
        recoverable = error.status_code in {429, 503}
        category = "Recoverable" if recoverable else "Internal" if error.status_code >= 500 else "User"
        return {"error": error.detail, "category": category, "recoverable": recoverable, "status": "error"}
    return {"error": {"message": error.detail, "type": openai, "param": error.param, "code": error.code}}


def from_engine(error: RocmForgeError, retry_after: int) -> ApiError:
    """Makes what a client is told of an error of the engine.

    Args:
        error: The engine's.
        retry_after: Seconds after which a client that was refused for want of room should come back.
    """
    message = str(error)
    match error:
        case InvalidRequestError():
            return ApiError(HTTPStatus.BAD_REQUEST, message)
        case QueueFullError():
            return ApiError(HTTPStatus.TOO_MANY_REQUESTS, message, headers={"Retry-After": str(retry_after)})
        case EngineDeadError() | OutOfMemoryError():
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers={"Retry-After": str(retry_after)})
        case _:
            return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message)


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Makes what a client is told of a body that does not fit: the first fault, by the parameter's name."""
    first = errors[0]
    # A value that may be of several kinds has a fault for each. What their places have in common is the value's.
    same = [error for error in errors if error["loc"][:2] == first["loc"][:2]]
    alone = len(same) == 1 or first["type"] in {"extra_forbidden", "missing"}
    place = first["loc"][1:] if alone else _common([error["loc"] for error in same])[1:]
    param = ".".join(map(str, place)) or None
    match first["type"]:
        case "extra_forbidden":
            return ApiError(400, f"{param}: this parameter is not supported; leave it out", param=param)
        case "missing":
            return ApiError(400, f"{param or 'body'}: it is missing", param=param)
        case "union_tag_invalid":
            what = first["ctx"]
            # The name of a field in quotes, or of a function `_type()` that finds it.
            param = ".".join([*map(str, place), what["discriminator"].strip("'_()")])
            return ApiError(400, f"{param}: got {what['tag']!r}, expected one of {what['expected_tags']}", param=param)
        case "json_invalid":
            detail = first.get("ctx", {}).get("error", first["msg"])
            return ApiError(400, f"body: it is not JSON: {detail}")
    telling = _telling(same)
    said = ", or ".join(dict.fromkeys(map(_expected, telling)))
    return ApiError(400, f"{param or 'body'}: got {_short(_got(telling))}, expected {said}", param=param)


def _common(places: Sequence[tuple[int | str, ...]]) -> tuple[int | str, ...]:
    """Returns the parts that all places begin with."""
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*places, strict=False))
    return tuple(parts[0] for parts in alike)


def _telling(faults: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The faults of the kind that a value was most likely meant to be: the one that it fits furthest down."""
    depth = max(len(fault["loc"]) for fault in faults)
    deep = [fault for fault in faults if len(fault["loc"]) == depth]
    return [fault for fault in deep if fault["type"] not in {"missing", "extra_forbidden"}] or deep[:1]


def _expected(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "missing":
        return f"{fault['loc'][-1]!r} in it"
    return str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")


def _got(faults: Sequence[Mapping[str, Any]]) -> object:
    value = faults[0]["input"]
    is_whole = len(faults) == 1 or not isinstance(value, dict | list)
    return value if is_whole else type(value).__name__


def _short(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return f"a deep {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."
