"""Grammars of tool calls of any shape that `CallShape` describes."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rocmforge.parsing.grammars.lark import Rules, UnsupportedCallsError, json_input, literal
from rocmforge.parsing.grammars.xml_arguments import (
    Tags,
    allows_any,
    checked_properties,
    tagged_arguments,
    tagged_input,
)
from rocmforge.parsing.shapes import FIRST_NUMBER, CallShape

_KEY = re.compile(r"[^\W\d]\w*")
_NUMBER = r'/"[0-9]+"/'


def shaped_call(
    rules: Rules, shape: CallShape, name: str, schema: Mapping[str, Any], text: str | None = None, *, strict: bool
) -> str:
    """Adds the rule of a call of one tool; returns its name.

    Args:
        rules: The rules of the grammar.
        shape: The shape of calls.
        name: The tool's name.
        schema: The schema of its arguments.
        text: The rule of its only argument `input`, if it is a custom tool with a grammar.
        strict: True if the whole schema must be enforced.

    Raises:
        UnsupportedCallsError: There is no such grammar for the shape or the schema.
    """
    middle = rules.text(shape.middle)
    match shape.kind:
        case "tagged":
            tags = shape_tags(shape)
            arguments = (
                tagged_arguments(rules, tags, name, schema, strict=strict) if text is None else tagged_input(tags, text)
            )
            return rules.add(f"{literal(name)} {middle} {arguments}")
        case "python":
            arguments = (
                _python_arguments(rules, name, schema, strict=strict)
                if text is None
                else f"{literal('input=' + chr(34))} {text} {literal(chr(34))}"
            )
            return rules.add(f"{literal(f'{name}(')} {arguments} {literal(')')}")
    arguments = rules.json(schema, f"the tool {name}", strict=strict) if text is None else json_input(text)
    if shape.kind == "json":
        written = literal(json.dumps(name, ensure_ascii=False))
        head = shape.head.split(FIRST_NUMBER, 1) if shape.is_counted else [shape.head]
        begun = f" {_NUMBER} ".join(map(rules.text, head))
        return rules.add(f"{begun} {written} {middle} {arguments} {rules.text(shape.tail)}")
    written = f"{literal(f'functions.{name}:')} /[0-9]+/" if shape.names_by_id else literal(name)
    return rules.add(f"{written} {middle} {arguments}")


def shape_tags(shape: CallShape) -> Tags:
    """Returns the tags around the arguments of a shape of the kind `tagged`."""
    opened = shape.key_open.replace("{", "{{").replace("}", "}}") + "{key}"
    excluded = re.escape(shape.value_close.strip()).replace("/", r"\/")
    other = f"{opened}{shape.other_key_close}" if shape.other_key_close else ""
    return Tags(f"{opened}{shape.key_close}", shape.value_close, excluded, other)


def _python_arguments(rules: Rules, tool: str, schema: Mapping[str, Any], *, strict: bool) -> str:
    """The body of a rule for `a=1, b="x"`: values are JSON, in the order of the schema."""
    properties, required = checked_properties(tool, schema, strict=strict)
    if wrong := next((key for key in properties if not _KEY.fullmatch(key)), None):
        raise UnsupportedCallsError(f"{tool}: the model's call format has no place for the key {wrong!r}")
    if allows_any(schema):
        pair = rules.add(f'/{_KEY.pattern}/ "=" {rules.json({}, f"an argument of the tool {tool}", strict=False)}')
        return f'({pair} (", " {pair})*)?'
    pairs = []
    for key, each in properties.items():
        value = rules.json(each, f"the argument {key} of the tool {tool}", strict=strict, root=schema)
        pairs.append(f"{literal(f'{key}=')} {value}")
    return _separated(rules, pairs, [key in required for key in properties])


def _separated(rules: Rules, pairs: Sequence[str], needed: Sequence[bool]) -> str:
    """The body of a rule for pairs with commas between them, of which only some are needed."""
    # Each pair after the first brings its comma; the first present pair has none.
    behind = ""
    ways: list[str] = []
    for index in reversed(range(len(pairs))):
        pair, must = pairs[index], needed[index]
        ways = [f"{pair} {behind}", *([] if must else ways)]
        if index:
            behind = rules.add(f'", " {pair} {behind}' if must else f'(", " {pair})? {behind}')
    return f"({' | '.join(ways)}){'' if any(needed) else '?'}" if ways else ""
