"""JSON schemas that have to hold together, as one."""

from collections.abc import Mapping
from typing import Any

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema"}
    | {"$defs", "definitions"}
)
"""Keywords that say nothing about values themselves."""


def merged(one: Mapping[str, Any], other: Any) -> dict[str, Any] | None:
    """One schema in place of two that both have to hold; `None` where there is no plain one.

    Keywords of both have to be equal. Properties of other names and required names come together, unless a schema
    speaks of the properties that the other one has not.
    """
    if not isinstance(other, Mapping):
        return None
    found = dict(one)
    added = {key: value for key, value in other.items() if key not in ANNOTATIONS}
    if "additionalProperties" in {*found, *added} and not _same_names(found, added):
        return None
    for key, value in added.items():
        if key not in found or found[key] == value:
            found[key] = value
        elif key == "required" and isinstance(value, list) and isinstance(found[key], list):
            found[key] = found[key] + [name for name in value if name not in found[key]]
        elif key == "properties" and isinstance(value, Mapping) and _agree(found[key], value):
            found[key] = {**found[key], **value}
        else:
            return None
    return found


def _same_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if at most one of two schemas says something about properties."""
    keywords = {"properties", "additionalProperties"}
    return not (keywords & one.keys() and keywords & other.keys()) or all(
        one.get(key) == other.get(key) for key in keywords
    )


def _agree(one: Any, other: Mapping[str, Any]) -> bool:
    """True if properties of the same name have the same schema."""
    return isinstance(one, Mapping) and all(one[key] == other[key] for key in one.keys() & other.keys())
