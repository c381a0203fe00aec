"""The shape of a family's tool calls, as data: the texts around and within them, and the format of arguments."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from secrets import token_hex
from typing import Any, Literal

CDATA = "<![CDATA["
"""The text that begins a value with characters that have a meaning in XML; `]]>` ends it."""
FIRST_NUMBER = '"0"'
"""The number of a message's first call in the head of its object."""
_PIECE = re.compile(r"<[^<>\s]*>?|[^\s<]+")


def pieces(text: str) -> list[str]:
    """Returns the markers and words of a text; a model may write white space between them."""
    return _PIECE.findall(text)


def shared(one: str, other: str) -> str:
    """Returns the common prefix of two texts."""
    length = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return one[: min(len(one), len(other)) if length is None else length]


def is_mark(piece: str) -> bool:
    """True if a piece of a text is a marker, not a word or a sign that occurs in ordinary text."""
    return re.fullmatch(r"<[^<>\s]+>|\[[A-Z_]+\]", piece) is not None


@dataclass(frozen=True, slots=True)
class CallShape:
    """The shape of a message with calls.

    A message is `open`, then the calls, then `close`. Each call has `before` and `after` around it, and `between`
    separates two calls. The field `kind` says how a call is written:

    - `json`: an object that contains name and arguments
    - `named`: a name, then an object
    - `tagged`: a name, then values between tags
    - `python`: a call in Python's syntax
    """

    kind: Literal["json", "named", "tagged", "python"]
    open: str = ""
    before: str = ""
    middle: str = ""
    """The text after the name, up to the arguments or the first key."""
    after: str = ""
    between: str = ""
    close: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    head: str = ""
    """For `json`, the text of the object up to the name; `middle` is the text between name and arguments."""
    is_counted: bool = False
    """True if `head` has the number of the call, from `"0"`."""
    tail: str = ""
    """For `json`, the rest of the object after the arguments; for `tagged`, the text after the last value."""
    names_by_id: bool = False
    """True if the name is written as an id: `functions.NAME:NUMBER`."""
    key_open: str = ""
    key_close: str = ""
    other_key_close: str = ""
    """The text after the key of a value that is not a string, if it differs."""
    value_close: str = ""
    has_cdata: bool = False
    """True if values may be a CDATA section of XML."""

    @property
    def marker(self) -> str:
        """The marker or the word that begins the calls of a message; empty if there is none."""
        found = pieces(self.open + self.before)
        return found[0] if found else ""

    @property
    def bare(self) -> bool:
        """True if calls begin with a sign that may also begin an answer, such as a bracket."""
        return not any(map(str.isalnum, self.marker))

    def example(self) -> str:
        """Returns an example of a call, with words in capitals in place of names and values."""
        name = "functions.NAME:0" if self.names_by_id else "NAME"
        body = {
            "json": f'{self.head}"NAME"{self.middle}{{…}}{self.tail}',
            "named": f"{name}{self.middle}{{…}}",
            "tagged": f"NAME{self.middle}{self.key_open}KEY{self.key_close}VALUE{self.value_close}",
            "python": "NAME(KEY=VALUE)",
        }[self.kind]
        return f"{self.open}{self.before}{body}{self.after}{self.close}"

    def written(self, calls: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
        """Returns calls as the text of a message, for templates that write none.

        Args:
            calls: Names and arguments; the shape is of the kind `json` or `python`.
        """
        texts = []
        for name, arguments in calls:
            if self.kind == "json":
                body = f"{self.head}{_json(name)}{self.middle}{_json(arguments)}{self.tail}"
            else:
                body = f"{name}({', '.join(f'{key}={_json(value)}' for key, value in arguments.items())})"
            texts.append(f"{self.before}{body}{self.after}")
        return self.open + self.between.join(texts) + self.close

    def with_placeholders(self) -> tuple["CallShape", dict[str, str]]:
        """Returns the shape with secret placeholders instead of its markers, and the marker of each placeholder.

        A message that is written by this shape has markers that no client can forge.
        """
        secret = token_hex(16)
        marks = sorted({*self.marks()}, key=len, reverse=True)
        placeholders = {f"{secret}{number}.": mark for number, mark in enumerate(marks)}
        changed: dict[str, Any] = {}
        for field in fields(self):
            if isinstance(text := getattr(self, field.name), str):
                for placeholder, mark in placeholders.items():
                    text = text.replace(mark, placeholder)
                changed[field.name] = text
        return replace(self, **changed), placeholders

    def marks(self) -> Iterator[str]:
        """Yields the markers of the shape, which may be control tokens of a model."""
        for field in fields(self):
            if isinstance(text := getattr(self, field.name), str):
                yield from filter(is_mark, pieces(text))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# Families whose templates do not write the calls of an assistant.
GRANITE_3 = CallShape(
    "json", open="<|tool_call|>[", between=", ", close="]", head='{"name": ', middle=', "arguments": ', tail="}"
)
LFM2 = CallShape("python", open="<|tool_call_start|>[", between=", ", close="]<|tool_call_end|>")
PHI_4 = CallShape(
    "json", open="<|tool_call|>[", between=", ", close="]<|/tool_call|>", head='{"name": ', middle=', "arguments": ',
    tail="}",
)  # fmt: skip
