"""Writes grammars in the syntax of Lark as llguidance has it: rules, terminals, texts with markers, and JSON."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Marker = Callable[[str], str]
"""Returns the grammar of a marker: a token, or a text."""

# JSON as templates write it: `json.dumps` and `tojson` put one space after a comma and a colon.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class UnsupportedCallsError(ValueError):
    """A call format has no way to enforce the rules of a request."""


def unsupported(tool: str, where: str, keywords: Iterable[str]) -> UnsupportedCallsError:
    """Returns the error for keywords of a tool's schema that a call format cannot enforce.

    Args:
        tool: The tool's name.
        where: The part of its arguments that has them.
        keywords: Their names.
    """
    names = ", ".join(sorted(keywords))
    return UnsupportedCallsError(f"{tool}: the model's call format leaves no way to enforce {names} in {where}")


def literal(text: str) -> str:
    """The grammar of a text."""
    # JSON's syntax has one control character unescaped that Lark's has not.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def json_input(text: str) -> str:
    """The grammar of the arguments of a custom tool in JSON.

    Args:
        text: The rule of its input, with JSON's escapes.
    """
    return " ".join((literal('{"input": "'), text, literal('"}')))


class Rules:
    """The rules and terminals of one grammar; equal ones are written once.

    Args:
        marker: Gives the grammar of a marker.
        markers: The texts that are markers.
    """

    def __init__(self, marker: Marker, markers: Iterable[str]) -> None:
        self._marker = marker
        self._markers = tuple(markers)
        self._lines: list[str] = []
        self._names: dict[tuple[str, str], str] = {}
        self._count = 0

    def add(self, body: str, options: str = "") -> str:
        """Adds a rule; returns its name."""
        if (known := self._names.get((options, body))) is None:
            known = self._names[options, body] = self.reserve()
            self._lines.append(f"{known}{options}: {body}")
        return known

    def reserve(self) -> str:
        """Returns the name of a rule that `define` adds later, which others may refer to before."""
        self._count += 1
        return f"rule_{self._count - 1}"

    def define(self, name: str, body: str) -> None:
        """Adds the rule of a reserved name."""
        self._lines.append(f"{name}: {body}")

    def nested(self, grammar: str) -> str:
        """Adds a rule that contains a whole grammar; returns its name."""
        return self.add(f"%lark {{\n{grammar}\n}}")

    def terminal(self, body: str) -> str:
        """Adds a terminal, which is read as a whole; returns its name."""
        if (known := self._names.get(("terminal", body))) is None:
            known = self._names["terminal", body] = self.reserve().upper()
            self._lines.append(f"{known}: {body}")
        return known

    def json(self, schema: Any, name: str, *, strict: bool, root: Mapping[str, Any] | None = None) -> str:
        """Adds the rule of JSON that a schema allows; returns its name.

        Args:
            schema: The schema.
            name: The words by which errors name it.
            strict: True if keywords that are not supported are an error of the engine's; else they are left out.
            root: The schema that has the definitions to which `schema` refers.
        """
        schema = {} if schema is True else dict(schema)
        for definitions in ("$defs", "definitions"):
            if root is not None and definitions in root:
                schema[definitions] = root[definitions]
        schema["x-guidance"] = _SPACING | {"lenient": not strict, "name": name}
        return self.add(f"%json {json.dumps(schema)}")

    def text(self, text: str) -> str:
        """The grammar of a text, in which the markers are markers."""
        pieces: list[str] = []
        while text:
            found = [(text.find(each), each) for each in self._markers if each in text]
            at, each = min(found, default=(len(text), ""))
            pieces += [literal(text[:at])] if at else []
            pieces += [self._marker(each)] if each else []
            text = text[at + len(each) :]
        return " ".join(pieces)

    def grammar(self, start: str, **terminals: str) -> str:
        """The whole grammar.

        Args:
            start: The body of the first rule.
            terminals: Further terminals that it names.
        """
        ends = [f"{name}: {pattern}" for name, pattern in terminals.items()]
        return "\n".join([f"start: {start}", *self._lines, *ends]) + "\n"
