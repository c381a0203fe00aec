"""Grammars of arguments that stand between tags as plain text: those of Qwen's coders and of GLM."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocmforge.parsing.formats import CallForm
from rocmforge.parsing.lark import Rules, UnsupportedCallsError, literal, unsupported
from rocmforge.parsing.schema import Tools

# Keywords of a text that a grammar can honour, or that say nothing about it.
_PLAIN_TEXT = {"type", "enum", "const", "title", "description", "default", "examples", "$comment"}
_PLAIN_OBJECT = {"type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$defs",
                 "definitions", "$comment"}  # fmt: skip
_KEY = re.compile(r"[^<>\r\n]+")


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts around the name and the value of an argument."""

    before: str
    after: str
    excluded: str
    """The pattern that a text must not have in it."""


TAGS: Mapping[CallForm, Tags] = {
    "qwen-xml": Tags(
        "<parameter={key}>\n", "\n</parameter>\n", r"<\/parameter>|\n<parameter=|\n<\/function>\n<\/tool_call>"
    ),
    "glm": Tags("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n", r"<\/arg_value>"),
}


def tagged_arguments(rules: Rules, tags: Tags, tool: str, schema: Mapping[str, Any], *, strict: bool) -> str:
    """Adds the rules of a tool's arguments; returns the body of a rule for them.

    Raises:
        UnsupportedCallsError: There is no such grammar for the schema.
    """
    if strict and (others := schema.keys() - _PLAIN_OBJECT):
        raise unsupported(tool, "its schema", others)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise UnsupportedCallsError(f"{tool}: properties has to be an object, and required a list")
    types = Tools([{"name": tool, "parameters": schema}])
    arguments = []
    for key, each in properties.items():
        if not _KEY.fullmatch(key):
            raise UnsupportedCallsError(f"{tool}: the model's form of calls has no place for the key {key!r}")
        found = types.types(tool, key)
        if "string" in found or not found:
            value = _text(rules, tags, tool, key, each, strict=strict)
        else:
            value = f"{rules.json(each, strict=strict, root=schema)} {literal(tags.after)}"
        argument = f"{literal(tags.before.format(key=key))} {value}"
        arguments.append(argument if key in required else f"({argument})?")
    return " ".join(arguments)


def _text(rules: Rules, tags: Tags, tool: str, key: str, schema: Any, *, strict: bool) -> str:
    """Adds the rule of a text and of what stands behind it."""
    schema = schema if isinstance(schema, Mapping) else {}
    if strict and (others := schema.keys() - _PLAIN_TEXT):
        raise unsupported(tool, f"the text {key}", others)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list):
        texts = [literal(choice) for choice in choices if isinstance(choice, str)]
        return f"({' | '.join(texts)}) {literal(tags.after)}"
    return rules.add(rf"/(?s:.*)/ & ~/(?s:.*)({tags.excluded})(?s:.*)/", f"[suffix={literal(tags.after)}]")
