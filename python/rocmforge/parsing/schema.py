"""The tools that a model may call, and the JSON of arguments that it writes as plain text."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rocmforge.parsing.readers.json_text import Write, escaped, literal, whole_json
from rocmforge.parsing.readers.python_text import PYTHON_BRACKETS, python_scalar
from rocmforge.parsing.source import SPACE

# References of a schema to its own definitions are followed so far.
_MAX_DEPTH = 8
_NULLS = ("null", "None")


class Tools:
    """Names and parameters of tools, in the form of any of the well-known interfaces.

    A tool is a mapping with `name` and a JSON schema (`parameters` or `input_schema`), or has such a mapping as its
    `function`.
    """

    __slots__ = ("_schemas",)

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        functions = (tool["function"] if isinstance(tool.get("function"), Mapping) else tool for tool in tools)
        self._schemas = {
            function["name"]: function.get("parameters", function.get("input_schema"))
            for function in functions
            if isinstance(function.get("name"), str)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def parameters(self, name: str) -> Mapping[str, Any]:
        """The names of a tool's parameters; none where its schema does not say."""
        schema = self._schemas.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        return properties if isinstance(properties, Mapping) else {}

    def types(self, name: str, key: str) -> set[str]:
        """JSON's names of the types that a parameter may have; none where the schema leaves it open."""
        properties = self.parameters(name)
        return _types(properties[key], self._schemas[name], 0) if key in properties else set()


def _types(schema: Any, root: Any, depth: int) -> set[str]:
    """The types that a schema allows; `root` is the schema that its references are about."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    found: set[str] = set()
    if isinstance(names := schema.get("type"), str | list):
        found = {names} if isinstance(names, str) else {name for name in names if isinstance(name, str)}
    elif isinstance(reference := schema.get("$ref"), str):
        found = _types(definition(reference, root), root, depth + 1)
    elif isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        found = {type_of(value) for value in values}
    for combination in () if found else ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(combination), list):
            of_parts = [_types(part, root, depth + 1) for part in parts]
            # A part that leaves the type open leaves it open for the whole, unless all parts have to hold.
            found = set().union(*of_parts) if combination == "allOf" or all(of_parts) else set()
    return found


def definition(reference: str, root: Any) -> Any:
    """The part of a schema that a reference such as `#/$defs/Unit` names; `None` where there is none."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    for name in reference[2:].split("/"):
        root = root.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def type_of(value: Any) -> str:
    """JSON's name of the type of a value, `number` for whole ones too."""
    names = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


class Value:
    """An argument that the model writes as plain text, made JSON.

    What may be a string is one, and is given as it comes. Where the schema allows both, only `null` and Python's `None`
    are told from a string. Other values are given when they are whole: as what they are if they are JSON or literals of
    Python's, else as a string.
    """

    __slots__ = ("_held", "_is_string", "_open", "_types", "_write")

    def __init__(self, write: Write, types: set[str]) -> None:
        self._write = write
        self._types = types
        self._is_string = "string" in types
        self._held: list[str] = []
        self._open = False

    def add(self, text: str) -> None:
        """Adds a piece of the value."""
        if not self._open:
            self._held.append(text)
            if not self._is_string:
                return
            text = "".join(self._held)
            if "null" in self._types and any(word.startswith(text) for word in _NULLS):
                return
            self._write('"')
            self._open = True
        self._write(escaped(text))

    def end(self) -> None:
        """Ends the value."""
        held = "".join(self._held)
        if self._open:
            self._write('"')
        elif self._is_string:
            # The held text is the beginning of a word for `null`.
            self._write("null" if held in _NULLS else f'"{escaped(held)}"')
        else:
            self._write(_json(held, self._types))


def _json(text: str, types: set[str]) -> str:
    solid = text.strip(SPACE)
    if (value := literal(solid)) is not None:
        return value
    try:
        value = json.loads(solid, parse_constant=_refuse)
    except (ValueError, RecursionError):
        # Some templates write lists and objects as Python does.
        held = whole_json(solid, python_scalar, PYTHON_BRACKETS) if types and solid[:1] in ("[", "{") else None
        return f'"{escaped(text)}"' if held is None else held
    # A parameter without a type may be a string that contains quotation marks.
    held = None if isinstance(value, str) and not types else whole_json(solid)
    return f'"{escaped(text)}"' if held is None else held


def _refuse(constant: str) -> None:
    """Refuses `NaN` and `Infinity`, which Python reads and JSON lacks.

    Raises:
        ValueError: Always.
    """
    raise ValueError(constant)
