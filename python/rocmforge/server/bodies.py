"""Bases of the bodies that clients send: strict types, no parameter that is not known."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator


class Body(BaseModel):
    """A body or a part of one. An unknown field is an error; `null` counts as absent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ignored: ClassVar[Mapping[str, str]] = {}
    """Fields that clients send and that cannot change the answer, each with the reason. They are dropped."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None and key not in cls.ignored}


# Nesting of objects in a body, which the engine's reader of JSON limits as well.
_MAX_DEPTH = 100


def _json(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError("an object that JSON can hold, without NaN, infinities and lone surrogates") from error
    if not _shallow(value, _MAX_DEPTH):
        raise ValueError(f"an object of at most {_MAX_DEPTH} levels")
    return value


def _shallow(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_shallow(part, levels - 1) for part in parts)


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text without lone surrogates") from error
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_json)]
"""An object that can be given back in an answer: Python reads more than JSON may hold."""
Text = Annotated[str, AfterValidator(_text)]
"""A text that can be given back in an answer."""
