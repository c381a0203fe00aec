"""Grammars of tool calls: what a model may write where it has to call, or where its calls have to fit their schemas.

They are in the syntax of Lark, as `StructuredOutputsParams(grammar=…)` takes it. The text that one allows is what the
model was trained to write, and what `OutputParser` reads.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge.parsing.formats import CallForm, ChatFormat
from rocmforge.parsing.schema import Tools

Marker = Callable[[str], str]
"""Gives the grammar of a marker: a token, or a text."""

# JSON as templates write it: `json.dumps` and `tojson` put one space behind a comma and a colon.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Keywords of a text that a grammar can honour, or that say nothing about it.
_PLAIN_TEXT = {"type", "enum", "const", "title", "description", "default", "examples", "$comment"}
_PLAIN_OBJECT = {"type", "properties", "required", "additionalProperties", "title", "description", "$schema", "$defs",
                 "definitions", "$comment"}  # fmt: skip
_NAME = re.compile(r"[\w.:/-]+")
_KEY = re.compile(r"[^<>\r\n]+")
# The header of a reply in harmony, behind the message that holds its thoughts.
_HARMONY_REPLY = ("<|start|>", "assistant", "<|channel|>")


class UnsupportedCallsError(ValueError):
    """A form of calls leaves no way to enforce what is asked for."""


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The grammar of a reply."""

    grammar: str
    begin: str = ""
    """The marker behind which the grammar holds; before it everything is allowed. Without one it holds at once."""


@dataclass(frozen=True, slots=True)
class _Form:
    """The texts around a call. A marker stands in a tuple of its own pieces, so that it can be a token."""

    open: tuple[str, ...]
    head: str
    tail: str
    close: str
    between: str | None
    """The text between two calls; `None` where there can be only one."""
    markers: tuple[str, ...] = ()


_HERMES = _Form(("<tool_call>", "\n"), '{{"name": {json}, "arguments": ', "}", "\n</tool_call>", "\n", ("<tool_call>",))
_FORMS: Mapping[CallForm, _Form] = {
    "hermes": _HERMES,
    "qwen-xml": _Form(
        ("<tool_call>", "\n"), "<function={name}>\n", "</function>", "\n</tool_call>", "\n", ("<tool_call>",)
    ),
    "glm": _Form(("<tool_call>",), "{name}\n", "", "</tool_call>", "\n", ("<tool_call>",)),
    "llama": _Form((), '{{"name": {json}, "parameters": ', "}", "", None),
    "mistral": _Form(("[TOOL_CALLS]",), "{name}[ARGS]", "", "", "", ("[TOOL_CALLS]", "[ARGS]")),
    "harmony": _Form(
        (*_HARMONY_REPLY, "commentary to=functions."), "{name} <|constrain|>json<|message|>", "", "", None,
        ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
    ),
}  # fmt: skip
# The form of Mistral's older models: all calls in one list.
_MISTRAL_LIST = _Form(
    ("[TOOL_CALLS]", "["), '{{"name": {json}, "arguments": ', "}", "]", ", ", ("[TOOL_CALLS]",)
)  # fmt: skip
# The texts around the name and the value of an argument, and the pattern that a text must not have in it.
_ARGUMENTS: Mapping[CallForm, tuple[str, str, str]] = {
    "qwen-xml": (
        "<parameter={key}>\n",
        "\n</parameter>\n",
        r"<\/parameter>|\n<parameter=|\n<\/function>\n<\/tool_call>",
    ),
    "glm": ("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n", r"<\/arg_value>"),
}  # fmt: skip


def call_grammar(
    chat_format: ChatFormat,
    template: str,
    tools: Iterable[Mapping[str, Any]],
    marker: Marker,
    *,
    strict: Collection[str] = (),
    parallel: bool = True,
    forced: bool = True,
) -> CallGrammar:
    """The grammar of replies that call tools.

    Args:
        chat_format: How the model writes.
        template: The chat template, which tells variants of a format apart.
        tools: The tools that may be called, in OpenAI's form.
        marker: Gives the grammar of a marker.
        strict: Names of tools whose schema has to be supported as a whole; keywords that are not are left out of the
            schemas of others.
        parallel: Whether there may be more than one call.
        forced: Whether there has to be a call. If not, a reply without one is allowed as well.

    Raises:
        UnsupportedCallsError: The format has no such grammar, or none for a schema. The message says why.
    """
    calls = chat_format.calls
    if calls is None or calls not in _FORMS:
        raise UnsupportedCallsError(f"calls in the form that the model's chat template has ({calls}) cannot be forced")
    form = _MISTRAL_LIST if calls == "mistral" and "[ARGS]" not in template else _FORMS[calls]
    writer = _Writer(calls, form, marker, strict)
    rules = [writer.call(tool["function"]) for tool in tools]
    call = f"({' | '.join(rules)})"
    is_list = form is _MISTRAL_LIST
    opened = writer.text("".join(form.open))
    # In a list, what opens and closes stands around all calls.
    again = "" if is_list else opened
    close = writer.text(form.close)
    more = (
        f"({writer.text(form.between)} {again} {call} {'' if is_list else close})*" if form.between is not None else ""
    )
    rest = f"{call} {'' if is_list else close} {more if parallel else ''} {close if is_list else ''}"
    if forced:
        return writer.grammar(f"{opened} {rest}")
    if calls == "harmony":
        answer = f"{writer.text(''.join(_HARMONY_REPLY) + 'final<|message|>')} ANYTHING"
        return writer.grammar(f"{opened} {rest} | {answer}", ANYTHING=r"/(?s:.*)/")
    if not form.open:
        # Without a marker a call is told from an answer by its first character.
        return writer.grammar(f"{rest} | ANSWER |", ANSWER=r"/\s*[^{\s](?s:.*)/")
    return writer.grammar(f"{writer.text(''.join(form.open[1:]))} {rest}", begin=form.open[0])


class _Writer:
    """Writes the rules of one grammar."""

    def __init__(self, calls: CallForm, form: _Form, marker: Marker, strict: Collection[str]) -> None:
        self._calls = calls
        self._form = form
        self._marker = marker
        self._strict = strict
        self._rules: list[str] = []

    def grammar(self, start: str, begin: str = "", **terminals: str) -> CallGrammar:
        """The whole grammar."""
        ends = [f"{name}: {pattern}" for name, pattern in terminals.items()]
        return CallGrammar("\n".join([f"start: {start}", *self._rules, *ends]) + "\n", begin)

    def text(self, text: str) -> str:
        """The grammar of a text, in which the form's markers are markers."""
        pieces: list[str] = []
        while text:
            found = [(text.find(each), each) for each in self._form.markers if each in text]
            at, each = min(found, default=(len(text), ""))
            pieces += [_literal(text[:at])] if at else []
            pieces += [self._marker(each)] if each else []
            text = text[at + len(each) :]
        return " ".join(pieces)

    def call(self, function: Mapping[str, Any]) -> str:
        """Adds the rule of a call without what opens and closes it; returns the rule's name."""
        name = function["name"]
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        if "{name}" in self._form.head and not _NAME.fullmatch(name):
            raise UnsupportedCallsError(f"{name!r}: the model's form of calls has no place for such a name")
        head = self._form.head.format(name=name, json=json.dumps(name, ensure_ascii=False))
        arguments = self._tagged(name, schema) if self._calls in _ARGUMENTS else self._json(schema, name)
        return self._rule(f"{self.text(head)} {arguments} {self.text(self._form.tail)}")

    def _rule(self, body: str, options: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def _json(self, schema: Any, tool: str, root: Mapping[str, Any] | None = None) -> str:
        """Adds the rule of JSON that a schema allows; `root` has the definitions that the schema refers to."""
        schema = {} if schema is True else dict(schema)
        for definitions in ("$defs", "definitions"):
            if root is not None and definitions in root:
                schema[definitions] = root[definitions]
        schema["x-guidance"] = _SPACING | {"lenient": tool not in self._strict}
        return self._rule(f"%json {json.dumps(schema)}")

    def _tagged(self, tool: str, schema: Mapping[str, Any]) -> str:
        """Adds the rules of arguments that stand between tags."""
        if tool in self._strict and (others := schema.keys() - _PLAIN_OBJECT):
            raise _unsupported(tool, "its schema", others)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise UnsupportedCallsError(f"{tool}: properties has to be an object, and required a list")
        types = Tools([{"name": tool, "parameters": schema}])
        before, after, excluded = _ARGUMENTS[self._calls]
        arguments = []
        for key, each in properties.items():
            if not _KEY.fullmatch(key):
                raise UnsupportedCallsError(f"{tool}: the model's form of calls has no place for the key {key!r}")
            found = types.types(tool, key)
            if "string" in found or not found:
                value = self._text(tool, key, each, after, excluded)
            else:
                value = f"{self._json(each, tool, schema)} {_literal(after)}"
            argument = f"{_literal(before.format(key=key))} {value}"
            arguments.append(argument if key in required else f"({argument})?")
        return " ".join(arguments)

    def _text(self, tool: str, key: str, schema: Any, after: str, excluded: str) -> str:
        """Adds the rule of a text and of what stands behind it."""
        schema = schema if isinstance(schema, Mapping) else {}
        if tool in self._strict and (others := schema.keys() - _PLAIN_TEXT):
            raise _unsupported(tool, f"the text {key}", others)
        choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(choices, list):
            texts = [_literal(choice) for choice in choices if isinstance(choice, str)]
            return f"({' | '.join(texts)}) {_literal(after)}"
        return self._rule(rf"/(?s:.*)/ & ~/(?s:.*)({excluded})(?s:.*)/", f"[suffix={_literal(after)}]")


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unsupported(tool: str, where: str, keywords: Iterable[str]) -> UnsupportedCallsError:
    names = ", ".join(sorted(keywords))
    return UnsupportedCallsError(f"{tool}: the model's form of calls leaves no way to enforce {names} in {where}")


def harmony_answer(form: str, marker: Marker) -> str:
    """The grammar of an answer of a certain form, behind the message that holds the thoughts.

    Args:
        form: A rule's body, such as `%json {…}`.
        marker: Gives the grammar of a marker.
    """
    start, role, channel = _HARMONY_REPLY
    pieces: Sequence[str] = (marker(start), _literal(role), marker(channel), _literal("final"), marker("<|message|>"))
    return f"start: {' '.join(pieces)} form\nform: {form}\n"
