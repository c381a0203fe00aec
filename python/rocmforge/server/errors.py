"""Errors in the format of each API: a status and a body."""

import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException

from rocmforge.errors import (
    EngineDeadError,
    InvalidRequestError,
    ModelFileError,
    OutOfMemoryError,
    QueueFullError,
    RocmForgeError,
)

logger = logging.getLogger("rocmforge.server")


class ApiError(HTTPException):
    """An answer that is an error.

    Args:
        status: HTTP status.
        message: The received value, the expected value, and the remedy.
        param: The parameter of the request at fault, if there is one.
        code: A word for programs, where OpenAI has one.
        headers: Further headers of the answer.
        details: Fields of the error for programs, in Anthropic's format.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        self.code = code
        self.details = details


# The type of an error in OpenAI's format and in Anthropic's, by status.
_TYPES = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("invalid_request_error", "request_too_large"),
    421: ("permission_error", "permission_error"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("service_unavailable_error", "overloaded_error"),
}

# A parameter as errors name it: `stop`, `prompt[3]`, `messages.0.content`, `prompt length in tokens`.
_PARAMETER = re.compile(r"([A-Za-z_]\w*(?:\[\d+\])*(?:\.\w+)*)(?:: |[\w ]*: got )")

# Seconds after which to come back where nothing says how fast the server is.
RETRY_AFTER = 15

# Paths of the API of `rocmforge.server.endpoints.native`.
_NATIVE = ("/generate", "/status/", "/cancel/")


def route_path(scope: Mapping[str, Any]) -> str:
    """Returns the path of a request without the prefix at which an application has mounted this one."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "").rstrip("/")
    return path.removeprefix(prefix) or "/" if path.startswith(f"{prefix}/") or path == prefix else path


def is_anthropic(path: str) -> bool:
    """True if a path belongs to Anthropic's API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def body(path: str, error: ApiError) -> dict[str, Any]:
    """Returns the body of an error for a request to `path`, in the format of that path's API."""
    openai, anthropic = _TYPES.get(error.status_code, _TYPES[500 if error.status_code >= 500 else 400])
    if is_anthropic(path):
        details = {} if error.details is None else {"details": error.details}
        return {"type": "error", "error": {"type": anthropic, "message": error.detail} | details}
    if path.startswith("/api/"):
        return {"error": error.detail}
    if path.startswith(_NATIVE):
        recoverable = error.status_code in {429, 503}
        category = "Recoverable" if recoverable else "Internal" if error.status_code >= 500 else "User"
        return {"error": error.detail, "category": category, "recoverable": recoverable, "status": "error"}
    return {"error": {"message": error.detail, "type": openai, "param": error.param, "code": error.code}}


def from_engine(error: RocmForgeError, retry_after: int) -> ApiError:
    """Translates an error of the engine into one for the client.

    Args:
        error: The engine's.
        retry_after: Seconds after which a client that was refused for want of room should come back.
    """
    message = str(error)
    match error:
        case InvalidRequestError():
            return ApiError(HTTPStatus.BAD_REQUEST, message, param=_named(message))
        case QueueFullError():
            return ApiError(HTTPStatus.TOO_MANY_REQUESTS, message, headers={"Retry-After": str(retry_after)})
        case EngineDeadError() | OutOfMemoryError():
            return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, message, headers={"Retry-After": str(retry_after)})
        case ModelFileError():
            # It has the path of the file, and what is in it.
            logger.error("%s", message)
            return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "model: its file is at fault; the server's log says why")
        case _:
            return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, message)


def _named(message: str) -> str | None:
    """Returns the parameter that a message begins with."""
    found = _PARAMETER.match(message)
    return None if found is None else found[1]


def from_validation(errors: Sequence[Mapping[str, Any]], given: Any) -> ApiError:
    """Returns the error for an invalid body: its first fault, with the parameter's name.

    Args:
        errors: The faults.
        given: The body.
    """
    errors = [{**error, "loc": _in_body(error, given)} for error in errors]
    first = errors[0]
    # A value that may have several types has a fault for each. The common part of their places is the value's place.
    same = [error for error in errors if error["loc"][:2] == first["loc"][:2]]
    alone = len(same) == 1 or first["type"] in {"extra_forbidden", "missing"}
    place = first["loc"][1:] if alone else _common([error["loc"] for error in same])[1:]
    param = ".".join(map(str, place)) or "body"
    match first["type"]:
        case "extra_forbidden":
            return ApiError(400, f"{param}: this parameter is not supported; leave it out", param=param)
        case "missing":
            return ApiError(400, f"{param}: it is missing", param=param)
        case "union_tag_invalid":
            what = first["ctx"]
            # The name of a field in quotes, or of a function `_type()` that finds it.
            param = ".".join([*map(str, place), what["discriminator"].strip("'_()")])
            return ApiError(
                400, f"{param}: got {short(what['tag'])}, expected one of {what['expected_tags']}", param=param
            )
        case "json_invalid":
            detail = first.get("ctx", {}).get("error", first["msg"])
            return ApiError(400, f"body: it is not JSON: {detail}", param="body")
    telling = _telling(same)
    said = ", or ".join(dict.fromkeys(map(_expected, telling)))
    return ApiError(400, f"{param}: got {short(_got(telling))}, expected {said}", param=param)


def _in_body(error: Mapping[str, Any], given: Any) -> tuple[int | str, ...]:
    """Returns the place as the client knows it, without the names of types between those of fields."""
    source, *place = error["loc"]
    if source != "body":
        return (source, *place)
    found: list[int | str] = [source]
    # A field that is `null` counts as missing, although it is there.
    lacks = error["type"] == "missing"
    for part in place[:-1] if lacks else place:
        if (isinstance(given, dict) and part in given) or (isinstance(given, list) and part in range(len(given))):
            given = given[part]
            found.append(part)
    return (*found, place[-1]) if lacks and place else tuple(found)


def _common(places: Sequence[tuple[int | str, ...]]) -> tuple[int | str, ...]:
    """Returns the parts that all places begin with."""
    alike = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*places, strict=False))
    return tuple(parts[0] for parts in alike)


def _telling(faults: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Returns the faults for the type that a value most likely should have: the type that it matches deepest."""
    depth = max(len(fault["loc"]) for fault in faults)
    deep = [fault for fault in faults if len(fault["loc"]) == depth]
    return [fault for fault in deep if fault["type"] not in {"missing", "extra_forbidden"}] or deep[:1]


def _expected(fault: Mapping[str, Any]) -> str:
    if fault["type"] == "missing":
        return f"{fault['loc'][-1]!r} in it"
    if fault["type"] == "union_tag_not_found":
        return f"{fault['ctx']['discriminator']} in it"
    if fault["type"] == "union_tag_invalid":
        return f"one of {fault['ctx']['expected_tags']}"
    return str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")


def _got(faults: Sequence[Mapping[str, Any]]) -> object:
    value = faults[0]["input"]
    if faults[0]["type"] == "union_tag_invalid":
        return faults[0]["ctx"]["tag"]
    is_whole = len(faults) == 1 or not isinstance(value, dict | list)
    return value if is_whole else type(value).__name__


# Most values of a list or an object that an error shows in full.
_MAX_SHOWN = 50
_MAX_SHOWN_LETTERS = 10_000


def short(value: object, length: int = 100) -> str:
    """Returns a short text for a value in an error, however large the value is."""
    if isinstance(value, str | bytes):
        text = repr(value[: length + 1])
    elif isinstance(value, dict | list) and not _is_small(value):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    else:
        text = repr(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _is_small(value: object) -> bool:
    """True if a value has few values in it."""
    left, count = [value], 0
    while left and count <= _MAX_SHOWN:
        one = left.pop()
        count += 1
        if isinstance(one, dict | list):
            if len(one) > _MAX_SHOWN:
                return False
            left.extend(one.values() if isinstance(one, dict) else one)
        elif isinstance(one, str) and len(one) > _MAX_SHOWN_LETTERS:
            return False
    return count <= _MAX_SHOWN
