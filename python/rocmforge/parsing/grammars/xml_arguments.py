"""Grammars of arguments that stand between tags as plain text: those of Qwen's coders and of GLM."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge.parsing.formats import CallFormat, ChatFormat
from rocmforge.parsing.grammars.lark import Rules, UnsupportedCallsError, literal, unsupported
from rocmforge.parsing.schema import Tools

# Keywords for strings that a grammar can enforce, or that do not restrict them.
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
    other_before: str = ""
    """The text before a value that is no text, where it is another one."""


TAGS: Mapping[CallFormat, Tags] = {
    "qwen-xml": Tags(
        "<parameter={key}>\n", "\n</parameter>\n", r"<\/parameter>|\n<parameter=|\n<\/function>\n<\/tool_call>"
    ),
    "glm": Tags("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n", r"<\/arg_value>"),
}
_COMPACT_GLM = Tags("<arg_key>{key}</arg_key><arg_value>", "</arg_value>", r"<\/arg_value>")


def format_tags(chat_format: ChatFormat) -> Tags | None:
    """Returns the tags around the arguments of a built-in call format; `None` if it has none."""
    return _COMPACT_GLM if chat_format.compact else TAGS.get(chat_format.calls or "derived")


def tagged_arguments(rules: Rules, tags: Tags, tool: str, schema: Mapping[str, Any], *, strict: bool) -> str:
    """Adds the rules of a tool's arguments; returns the body of a rule for them.

    Raises:
        UnsupportedCallsError: There is no such grammar for the schema.
    """
    properties, required = checked_properties(tool, schema, strict=strict)
    if allows_any(schema):
        return _any_arguments(rules, tags)
    types = Tools([{"name": tool, "parameters": schema}])
    arguments = []
    for key, each in properties.items():
        if not _KEY.fullmatch(key):
            raise UnsupportedCallsError(f"{tool}: the model's call format has no place for the key {key!r}")
        found = types.types(tool, key)
        before = tags.before
        if found == {"boolean"} and not strict:
            # Many templates write these words as Python does.
            value = f'("true" | "false" | "True" | "False") {literal(tags.after)}'
            before = tags.other_before or before
        elif "string" in found or not found:
            value = _text(rules, tags, tool, key, each, strict=strict)
        else:
            rule = rules.json(each, f"the argument {key} of the tool {tool}", strict=strict, root=schema)
            value = f"{rule} {literal(tags.after)}"
            before = tags.other_before or before
        argument = f"{literal(before.format(key=key))} {value}"
        arguments.append(argument if key in required else f"({argument})?")
    return " ".join(arguments)


def tagged_input(tags: Tags, text: str) -> str:
    """Returns the body of a rule for the arguments of a custom tool.

    Args:
        tags: The texts around an argument.
        text: The rule of its input.
    """
    return f"{literal(tags.before.format(key='input'))} {text} {literal(tags.after)}"


def allows_any(schema: Mapping[str, Any]) -> bool:
    """True if a schema is that of any object."""
    return "properties" not in schema and schema.get("additionalProperties", True) is True


def _any_arguments(rules: Rules, tags: Tags) -> str:
    """The body of a rule for any number of arguments, each with any name and any text as its value."""
    value = rules.add(rf"/(?s:.*)/ & ~/(?s:.*)({tags.excluded})(?s:.*)/", f"[suffix={literal(tags.after)}]")
    ways = []
    for before in filter(None, (tags.before, tags.other_before)):
        opened, closed = (part.format() for part in before.split("{key}"))
        key = rf"/[^<>\r\n{re.escape(closed[:1])}]+/"
        ways.append(f"{literal(opened)} {key} {literal(closed)}")
    return f"(({' | '.join(ways)}) {value})*"


def checked_properties(
    tool: str, schema: Mapping[str, Any], *, strict: bool
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The properties of a tool's arguments, and the names of those that are required.

    Raises:
        UnsupportedCallsError: The schema is strict and says more, or it is wrong.
    """
    if strict and (others := schema.keys() - _PLAIN_OBJECT):
        raise unsupported(tool, "its schema", others)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise UnsupportedCallsError(f"{tool}: properties has to be an object, and required a list")
    return properties, required


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
