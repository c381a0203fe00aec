"""Grammars of the arguments of Gemma 4's calls: `{key:<|"|>text<|"|>,other:[1,true]}`.

Keys come in the order in which the model's chat template writes them: without regard to their case.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from rocmforge.parsing.grammars.lark import Rules, UnsupportedCallsError, literal, unsupported
from rocmforge.parsing.grammars.patterns import PatternError, quoted, whole
from rocmforge.parsing.grammars.schema_parts import ANNOTATIONS, merged
from rocmforge.parsing.schema import definition, type_of

QUOTE = '<|"|>'
"""The marker on both sides of a text."""

_COMBINATIONS = ("$ref", "allOf", "anyOf")
# Keywords by the type of the values that they restrict.
_KEYWORDS: Mapping[str, set[str]] = {
    "string": {"minLength", "maxLength", "pattern"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set(),
    "null": set(),
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
_SUPPORTED = {"type", "enum", "const", *_COMBINATIONS}.union(*_KEYWORDS.values())
# Keys that the parser of calls reads back as they are.
_KEY = re.compile(r'(?=[^ \t\r\n])[^:,{}\[\]<"]{1,256}(?<![ \t\r\n])')
_OTHER_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_NO_QUOTE = f"~/(?s:.*){quoted(QUOTE)}(?s:.*)/"
_ANY_TEXT = "/(?s:.*)/"


def gemma_arguments(rules: Rules, tool: str, schema: Mapping[str, Any], *, strict: bool) -> str:
    """Adds the rules of a tool's arguments with the braces around them; returns the body of a rule for them.

    Args:
        rules: The rules of the grammar. The marker `QUOTE` is one of theirs.
        tool: The tool's name.
        schema: The JSON schema of its arguments.
        strict: True if keywords that cannot be honoured are an error; else they are left out.

    Raises:
        UnsupportedCallsError: There is no such grammar for the schema.
    """
    try:
        return _Arguments(rules, tool, schema, strict=strict).outermost()
    except RecursionError as error:
        raise UnsupportedCallsError(f"{tool}: got a schema of too many layers, expected fewer") from error


class _Arguments:
    """Writes the rules of one tool's arguments. Places are paths of arguments, for errors."""

    def __init__(self, rules: Rules, tool: str, root: Mapping[str, Any], *, strict: bool) -> None:
        self._rules = rules
        self._tool = tool
        self._root = root
        self._strict = strict
        self._mark = rules.text(QUOTE)
        # Rules of schemas that may stand within themselves.
        self._known: dict[str, str] = {}

    def outermost(self) -> str:
        types = self._root.get("type", "object")
        if "object" not in (types if isinstance(types, list) else [types]):
            raise self._wrong(f"the type {types}", "the type object", "")
        return self._value({**self._root, "type": "object"}, "", frozenset())

    def _value(self, schema: Any, place: str, around: frozenset[str] = frozenset()) -> str:
        """A rule's body for a value; `around` are the schemas of this same value that lead to this one."""
        if not isinstance(schema, Mapping | bool):
            raise self._wrong(schema, "a schema", place)
        if schema is False:
            raise self._wrong("a schema that allows no value", "one that does", place)
        parts = {} if schema is True else {key: schema[key] for key in schema if key not in ANNOTATIONS}
        if parts and "$ref" not in parts:
            return self._parts(parts, place, around)
        name = json.dumps(parts, sort_keys=True)
        if name in around:
            raise self._wrong("a schema that is defined by itself", "a definition of it", place)
        if name not in self._known:
            self._known[name] = self._rules.reserve()
            self._rules.define(self._known[name], self._parts(parts, place, around | {name}))
        return self._known[name]

    def _parts(self, parts: Mapping[str, Any], place: str, around: frozenset[str]) -> str:
        """A rule's body for a value of a schema without annotations."""
        for key in _COMBINATIONS:
            if key in parts:
                rest = {name: value for name, value in parts.items() if name != key}
                return self._combined(key, parts[key], rest, place, around)
        if not self._strict and "oneOf" in parts:
            # A schema that is not strict may allow more than it says.
            rest = {name: value for name, value in parts.items() if name != "oneOf"}
            return self._combined("anyOf", parts["oneOf"], rest, place, around)
        if self._strict and (others := parts.keys() - _SUPPORTED):
            raise self._unsupported(others, place)
        return self._plain(parts, place)

    def _combined(self, key: str, value: Any, rest: Mapping[str, Any], place: str, around: frozenset[str]) -> str:
        """A rule's body for a value that has to fit other schemas and the rest of its own."""
        if key == "$ref":
            found = definition(value, self._root) if isinstance(value, str) else None
            if found is None and not self._strict:
                return self._value(rest, place, around)
            if found is None:
                raise self._wrong(
                    f"the reference {value!r}", "one to a part of the schema, such as #/$defs/name", place
                )
            return self._value(self._merged("$ref", [rest, found], place) if rest else found, place, around)
        if not isinstance(value, list) or not value:
            raise self._wrong(f"{key} {value!r}", "a list of schemas", place)
        if key == "allOf":
            return self._value(self._merged(key, [rest, *value], place), place, around)
        schemas = [self._merged(key, [rest, each], place) if rest else each for each in value]
        return _one_of(self._value(each, place, around) for each in schemas)

    def _merged(self, key: str, schemas: Sequence[Any], place: str) -> Any:
        """One schema in place of some that all have to hold."""
        found: dict[str, Any] = {}
        for each in schemas:
            if (both := merged(found, {} if each is True else each)) is not None:
                found = both
            elif self._strict:
                raise self._unsupported([key], place)
        return found

    def _plain(self, schema: Mapping[str, Any], place: str) -> str:
        """A rule's body for a value of a schema without combinations of others."""
        types = schema.get("type", list(_KEYWORDS))
        types = [types] if isinstance(types, str) else types
        if not isinstance(types, list) or not types or not all(each in (*_KEYWORDS, "integer") for each in types):
            raise self._wrong(f"the type {schema['type']!r}", f"one of {', '.join(_KEYWORDS)} and integer", place)
        if "enum" in schema or "const" in schema:
            return self._choice(schema, types, place)
        kinds = {
            "string": self._text,
            "integer": self._number,
            "number": self._number,
            "boolean": lambda *_: '("true" | "false")',
            "null": lambda *_: '"null"',
            "array": self._array,
            "object": self._object,
        }
        if "number" in types:
            types = [each for each in types if each != "integer"]
        return _one_of(kinds[each]({**schema, "type": each}, place) for each in types)

    def _choice(self, schema: Mapping[str, Any], types: Sequence[str], place: str) -> str:
        """A rule's body for one of some values."""
        if self._strict and (others := schema.keys() - {"type", "enum", "const"}):
            raise self._unsupported([f"{name} beside enum or const" for name in others], place)
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list):
            raise self._wrong(f"enum {values!r}", "a list of values", place)
        fitting = [value for value in values if _has_type(value, types)]
        if "enum" in schema and "const" in schema:
            fitting = [value for value in fitting if json.dumps(value) == json.dumps(schema["const"])]
        if not fitting:
            raise self._wrong(f"{values!r} with the type {', '.join(types)}", "a value of the type", place)
        return _one_of(self._written(value) for value in fitting)

    def _written(self, value: Any) -> str:
        """A rule's body for a value that is given."""
        if isinstance(value, str):
            if QUOTE in value:
                raise self._no_place(f"the text {value!r}")
            return f"{self._mark} {literal(value)} {self._mark}"
        if isinstance(value, list):
            return f'"[" {_parted(map(self._written, value))} "]"'
        if isinstance(value, Mapping):
            pairs = (f"{literal(f'{self._key(key)}:')} {self._written(value[key])}" for key in _ordered(value))
            return f'"{{" {_parted(pairs)} "}}"'
        return literal(json.dumps(value))

    def _number(self, schema: Mapping[str, Any], place: str) -> str:
        """A rule's body for a number. Its text is JSON's, so the engine's own rules for bounds hold."""
        keywords = {key: schema[key] for key in ("type", *sorted(_KEYWORDS["number"])) if key in schema}
        return self._rules.json(keywords, f"{place} of the tool {self._tool}", strict=self._strict)

    def _text(self, schema: Mapping[str, Any], place: str) -> str:
        """A rule's body for a text with its marks."""
        least, most = self._bounds(schema, "minLength", "maxLength", place)
        body = _ANY_TEXT if not least and most is None else f"/(?s:.{{{least},{'' if most is None else most}}})/"
        if (pattern := schema.get("pattern")) is not None:
            try:
                body += f" & /{whole(pattern)}/"
            except (PatternError, TypeError) as error:
                if self._strict:
                    raise self._unsupported([f"the pattern ({error})"], place) from error
        body += f" & {_NO_QUOTE}"
        if self._mark == literal(QUOTE):
            return f"{self._mark} {self._rules.add(body, f'[suffix={self._mark}]')}"
        return f"{self._mark} {self._rules.terminal(body)} {self._mark}"

    def _array(self, schema: Mapping[str, Any], place: str) -> str:
        """A rule's body for a list."""
        prefix, items = schema.get("prefixItems", []), schema.get("items", True)
        if not isinstance(prefix, list):
            raise self._wrong(f"prefixItems {prefix!r}", "a list of schemas", place)
        least, most = self._bounds(schema, "minItems", "maxItems", place)
        if items is False:
            most = len(prefix) if most is None else min(most, len(prefix))
            if least > most:
                raise self._wrong(f"minItems {least} with {most} items at most", "room for them", place)
        inner = f"{place}[]"
        if not prefix and most != 0:
            prefix = [items]
        first = [self._value(each, inner) for each in (prefix if most is None else prefix[:most])]
        rest = ""
        if items is not False and (most is None or most > len(prefix)):
            many = f"{max(0, least - len(prefix))},{'' if most is None else most - len(prefix)}"
            rest = f'("," {self._value(items, inner)}){{{many}}}'
        for index in reversed(range(len(first))):
            rest = f"{first[index]} {rest}"
            rest = f'"," {rest}' if index else rest
            rest = rest if index < least else f"({rest})?"
        return self._rules.add(f'"[" {rest} "]"')

    def _object(self, schema: Mapping[str, Any], place: str) -> str:
        """A rule's body for an object."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        others = schema.get("additionalProperties", "properties" not in schema)
        is_list = isinstance(required, list) and all(isinstance(key, str) for key in required)
        if not isinstance(properties, Mapping) or not is_list:
            raise self._wrong("properties or required", "an object of schemas and a list of names", place)
        named = dict.fromkeys(required, others) | dict(properties)
        pairs = [
            f"{literal(f'{self._key(key)}:')} {self._value(named[key], f'{place}.{key}' if place else key)}"
            for key in _ordered(named)
        ]
        needed = [key in required for key in _ordered(named)]
        if others is False:
            return self._rules.add(f'"{{" {self._pairs(pairs, needed, "")} "}}"')
        but = f" & ~/{'|'.join(map(quoted, named))}/" if named else ""
        other = f'{self._rules.terminal(f"{_OTHER_KEY}{but}")} ":" {self._value(others, f"{place}.*")}'
        return self._rules.add(f'"{{" {self._pairs(pairs, needed, other)} "}}"')

    def _pairs(self, pairs: Sequence[str], needed: Sequence[bool], other: str) -> str:
        """A rule's body for pairs, which may be left out unless they are needed, and for any number of another one."""
        # Each pair after the first brings its comma; the first present pair has none.
        behind = f'("," {other})*' if other else ""
        ways = [f"{other} {behind}"] if other else []
        for index in reversed(range(len(pairs))):
            pair, must = pairs[index], needed[index]
            ways = [f"{pair} {behind}", *([] if must else ways)]
            if index:
                behind = self._rules.add(f'"," {pair} {behind}' if must else f'("," {pair})? {behind}')
        return f"({' | '.join(ways)}){'' if any(needed) else '?'}" if ways else ""

    def _key(self, key: Any) -> str:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise self._no_place(f"the key {key!r}")
        return key

    def _bounds(self, schema: Mapping[str, Any], lower: str, upper: str, place: str) -> tuple[int, int | None]:
        """The least and the most of a count."""
        least, most = schema.get(lower, 0), schema.get(upper)
        for value in (least, 0 if most is None else most):
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise self._wrong(f"{lower} {least!r} and {upper} {most!r}", "whole numbers from 0", place)
        if most is not None and least > most:
            raise self._wrong(f"{lower} {least} and {upper} {most}", f"{lower} of at most {upper}", place)
        return least, most

    def _unsupported(self, keywords: Iterable[str], place: str) -> UnsupportedCallsError:
        return unsupported(self._tool, f"the argument {place}" if place else "its schema", keywords)

    def _no_place(self, got: str) -> UnsupportedCallsError:
        return UnsupportedCallsError(f"{self._tool}: the model's call format has no place for {got}")

    def _wrong(self, got: Any, expected: str, place: str) -> UnsupportedCallsError:
        where = f"the argument {place}" if place else "its schema"
        return UnsupportedCallsError(f"{self._tool}: {where}: got {got}, expected {expected}")


def _one_of(bodies: Iterable[str]) -> str:
    found = list(dict.fromkeys(bodies))
    return found[0] if len(found) == 1 else f"({' | '.join(found)})"


def _parted(written: Iterable[str]) -> str:
    return ' "," '.join(written)


def _ordered(keys: Iterable[str]) -> list[str]:
    """Keys in the order of Jinja's `dictsort`."""
    return sorted(keys, key=lambda key: str(key).lower())


def _has_type(value: Any, types: Sequence[str]) -> bool:
    """True if a value has one of some types; whole numbers are integers, however they are written."""
    if (name := type_of(value)) != "number":
        return name in types
    if isinstance(value, float) and not isfinite(value):
        return False
    return "number" in types or ("integer" in types and value == int(value))
