"""`/openapi.json`: FastAPI's description of the routes, completed with errors, streams and keys."""

from typing import Any

from fastapi import FastAPI

from rocmforge.server.errors import ApiError, body
from rocmforge.server.http.middleware import OPEN_PATHS

_TEXT: dict[str, Any] = {"type": "string"}
_MAYBE: dict[str, Any] = {"type": ["string", "null"]}
# The formats of errors for each API, with a path of the API and the types of the fields.
_SHAPES = {"OpenAI": "/v1/models", "Anthropic": "/v1/messages", "Ollama": "/api/chat", "Native": "/generate"}
_KINDS: dict[str, dict[str, Any]] = {"code": _MAYBE, "param": _MAYBE, "recoverable": {"type": "boolean"}}
# Statuses that any path may return.
_STATUSES = {
    "400": "The request cannot be served.",
    "401": "The key is missing or unknown.",
    "403": "A client may not do this.",
    "404": "There is no such path, model or request.",
    "408": "The request took too long.",
    "413": "The body is too large.",
    "429": "Too many requests wait; `Retry-After` says when to come back.",
    "500": "The server failed.",
    "503": "The server ends, or the engine cannot serve now; `Retry-After` says when to come back.",
}
_STREAM = {"text/event-stream": {"schema": _TEXT}}
_LINES = {"application/x-ndjson": {"schema": _TEXT}}


def describe(app: FastAPI, *, has_keys: bool) -> dict[str, Any]:
    """Returns the description of all paths.

    Args:
        app: The application.
        has_keys: True if a key is needed.
    """
    # FastAPI caches its description.
    made = app.openapi_schema or FastAPI.openapi(app)
    schemas = made["components"]["schemas"]
    if "HTTPValidationError" not in schemas:
        return made
    # Invalid bodies are a 400 here, not FastAPI's 422.
    del schemas["HTTPValidationError"], schemas["ValidationError"]
    for name, path in _SHAPES.items():
        schemas[f"{name}Error"] = _shape(body(path, ApiError(400, "")))
    if has_keys:
        made["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        made["security"] = [{"bearer": []}, {"x-api-key": []}]
    for path, methods in made["paths"].items():
        for operation in methods.values():
            _complete(path, operation, schemas, has_keys=has_keys)
    return made


def _complete(path: str, operation: dict[str, Any], schemas: dict[str, Any], *, has_keys: bool) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if path in OPEN_PATHS:
        operation["security"] = []
        return
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{_api(path)}Error"}}}
    for status, meaning in _STATUSES.items():
        if status != "401" or has_keys:
            responses[status] = {"description": meaning, "content": content}
    if path == "/metrics":
        responses["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    if "requestBody" not in operation:
        return
    (asked,) = operation["requestBody"]["content"].values()
    fields = schemas[asked["schema"]["$ref"].rpartition("/")[2]]["properties"]
    if path == "/generate/stream":
        responses["200"]["content"] = _STREAM
    elif "stream" in fields:
        responses["200"]["content"] |= _LINES if path.startswith("/api/") else _STREAM


def _api(path: str) -> str:
    """Returns the name of the API whose error format a path has."""
    shape = _shape(body(path, ApiError(400, "")))
    return next(name for name, other in _SHAPES.items() if _shape(body(other, ApiError(400, ""))) == shape)


def _shape(value: Any, name: str = "") -> dict[str, Any]:
    """Returns the schema of an error."""
    if not isinstance(value, dict):
        return _KINDS.get(name, _TEXT)
    properties = {name: _shape(item, name) for name, item in value.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}
