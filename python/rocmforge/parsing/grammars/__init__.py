"""Grammars of tool calls, for forced calls and for calls that must match their schemas.

They use the syntax of Lark, for `StructuredOutputsParams(grammar=…)`. A grammar allows the text that the model was
trained to write and that `OutputParser` reads.
"""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge.parsing.formats import CallFormat, ChatFormat
from rocmforge.parsing.grammars.gemma_arguments import QUOTE, gemma_arguments
from rocmforge.parsing.grammars.inputs import InputGrammar
from rocmforge.parsing.grammars.lark import Marker, Rules, UnsupportedCallsError, json_input, literal
from rocmforge.parsing.grammars.shaped_grammars import shape_tags, shaped_call
from rocmforge.parsing.grammars.xml_arguments import Tags, format_tags, tagged_arguments, tagged_input
from rocmforge.parsing.shapes import CallShape, is_mark, shared

_NAME = re.compile(r"[\w.:/-]+")
# The id of a call of Mistral's.
_ID = "/[A-Za-z0-9]{9}/"
# The header of a reply in harmony, after the message with the reasoning.
_HARMONY_REPLY = ("<|start|>", "assistant", "<|channel|>")


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """The grammar of a reply."""

    grammar: str
    begin: str = ""
    """The grammar applies after this marker; any text may precede it. Without a marker, it applies from the start."""


@dataclass(frozen=True, slots=True)
class _Syntax:
    """The texts around a call. A marker is a separate element of a tuple, so that it can be a token."""

    open: tuple[str, ...]
    head: str
    tail: str
    close: str
    between: str | None
    """The text between two calls; `None` if there can be only one."""
    markers: tuple[str, ...] = ()


_HERMES = _Syntax(
    ("<tool_call>", "\n"), '{{"name": {json}, "arguments": ', "}", "\n</tool_call>", "\n", ("<tool_call>",)
)
_SYNTAXES: Mapping[CallFormat, _Syntax] = {
    "hermes": _HERMES,
    "qwen-xml": _Syntax(
        ("<tool_call>", "\n"), "<function={name}>\n", "</function>", "\n</tool_call>", "\n", ("<tool_call>",)
    ),
    "glm": _Syntax(("<tool_call>",), "{name}\n", "", "</tool_call>", "\n", ("<tool_call>",)),
    "llama": _Syntax((), '{{"name": {json}, "parameters": ', "}", "", None),
    "mistral": _Syntax(("[TOOL_CALLS]",), "{name}[ARGS]", "", "", "", ("[TOOL_CALLS]", "[ARGS]")),
    "gemma4": _Syntax(
        ("<|tool_call>", "call:"), "{name}", "", "<tool_call|>", "", ("<|tool_call>", "<tool_call|>", QUOTE)
    ),
    "harmony": _Syntax(
        (*_HARMONY_REPLY, "commentary to=functions."), "{name} <|constrain|>json<|message|>", "", "", None,
        ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
    ),
}  # fmt: skip
_COMPACT_GLM = _Syntax(("<tool_call>",), "{name}", "", "</tool_call>", "", ("<tool_call>",))
_MISTRAL_IDS = _Syntax(
    ("[TOOL_CALLS]",), "{name}[CALL_ID]{id}[ARGS]", "", "", "", ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
)
_LLAMA_ARGUMENTS = _Syntax((), '{{"name": {json}, "arguments": ', "}", "", None)
# The call format of Mistral's older models: all calls in one list.
_MISTRAL_LIST = _Syntax(
    ("[TOOL_CALLS]", "["), '{{"name": {json}, "arguments": ', "}", "]", ", ", ("[TOOL_CALLS]",)
)  # fmt: skip


def call_grammar(
    chat_format: ChatFormat,
    template: str,
    tools: Iterable[Mapping[str, Any]],
    marker: Marker,
    *,
    strict: Collection[str] = (),
    parallel: bool = True,
    forced: bool = True,
    answer: str | None = None,
    inputs: Mapping[str, str] | None = None,
) -> CallGrammar:
    """Returns the grammar of replies that call tools.

    Args:
        chat_format: The reply format of the model.
        template: The chat template, which distinguishes variants of a format.
        tools: The tools that may be called, in OpenAI's format.
        marker: Returns the grammar of a marker.
        strict: Names of tools whose whole schema must be enforced. In other schemas, unsupported keywords are left out.
        parallel: True if there may be more than one call.
        forced: True if there must be a call; otherwise a reply without a call is allowed as well.
        answer: The body of the rule of a reply without a call, such as `%json {…}`; `None` for any text.
        inputs: Grammars of tools whose only argument `input` is a text, by tool name; from `fitting_inputs`.

    Raises:
        UnsupportedCallsError: The format has no such grammar, or none for a schema. The message says why.
    """
    calls = chat_format.calls
    if calls is None:
        raise UnsupportedCallsError("the model's chat template has no call format that could be enforced")
    if chat_format.shape is not None:
        if answer is not None and not forced:
            raise UnsupportedCallsError("the model's call format has no grammar for a call or a structured answer")
        return _shaped(chat_format.shape, tools, marker, strict, inputs or {}, parallel=parallel, forced=forced)
    syntax = _syntax(chat_format, calls, template)
    tags = format_tags(chat_format)
    rules = Rules(marker, syntax.markers)
    functions = [tool["function"] for tool in tools]
    call = f"({' | '.join(_call(rules, calls, syntax, tags, each, strict, inputs or {}) for each in functions)})"
    is_list = syntax is _MISTRAL_LIST
    opened = rules.text("".join(syntax.open))
    # In a list, the opening and closing texts enclose all calls.
    again = "" if is_list else opened
    close = rules.text(syntax.close)
    more = (
        f"({rules.text(syntax.between)} {again} {call} {'' if is_list else close})*"
        if syntax.between is not None
        else ""
    )
    rest = f"{call} {'' if is_list else close} {more if parallel else ''} {close if is_list else ''}"
    if forced:
        return CallGrammar(rules.grammar(f"{opened} {rest}"))
    header = f"{rules.text(''.join(_HARMONY_REPLY) + 'final<|message|>')} " if calls == "harmony" else ""
    if answer is not None:
        return CallGrammar(rules.grammar(f"{opened} {rest} | {header}{rules.add(answer)}"))
    if calls == "harmony":
        return CallGrammar(rules.grammar(f"{opened} {rest} | {header}ANYTHING", ANYTHING=r"/(?s:.*)/"))
    if not syntax.open:
        # Without a marker, the first character distinguishes a call from an answer.
        return CallGrammar(rules.grammar(f"{rest} | ANSWER |", ANSWER=r"/\s*[^{\s](?s:.*)/"))
    return CallGrammar(rules.grammar(f"{rules.text(''.join(syntax.open[1:]))} {rest}"), syntax.open[0])


def _syntax(chat_format: ChatFormat, calls: CallFormat, template: str) -> _Syntax:
    """Returns the syntax of calls; some templates write a variant of their format's."""
    if calls == "mistral" and "[ARGS]" not in template:
        return _MISTRAL_LIST
    if calls == "mistral" and "[CALL_ID]" in template:
        return _MISTRAL_IDS
    if calls == "llama" and '"arguments"' in template and '"parameters"' not in template:
        return _LLAMA_ARGUMENTS
    return _COMPACT_GLM if chat_format.compact else _SYNTAXES[calls]


def fitting_inputs(chat_format: ChatFormat, inputs: Mapping[str, InputGrammar]) -> dict[str, str]:
    """Returns the grammars of custom tools' inputs as `call_grammar` takes them.

    Those that the call format cannot enforce are left out.

    Args:
        chat_format: The reply format of the model.
        inputs: The grammars, by tool name.
    """
    tags = format_tags(chat_format)
    if chat_format.shape is not None and chat_format.shape.kind == "tagged":
        tags = shape_tags(chat_format.shape)
    made: dict[str, str] = {}
    for name, grammar in inputs.items() if chat_format.calls is not None else ():
        with contextlib.suppress(UnsupportedCallsError):
            if tags is not None:
                made[name] = grammar.as_text(tags.after)
            else:
                # A control token ends a text of Gemma 4.
                made[name] = grammar.as_text("") if chat_format.calls == "gemma4" else grammar.in_json()
    return made


def _call(
    rules: Rules,
    calls: CallFormat,
    syntax: _Syntax,
    tags: Tags | None,
    function: Mapping[str, Any],
    strict_tools: Collection[str],
    inputs: Mapping[str, str],
) -> str:
    """Adds the rule of a call without its opening and closing texts; returns the rule's name."""
    name = function["name"]
    strict = name in strict_tools
    schema = _object_schema(name, function.get("parameters"), strict=strict)
    if "{name}" in syntax.head:
        _check_name(name)
    head = syntax.head.format(name=name, json=json.dumps(name, ensure_ascii=False), id="{id}")
    if name in inputs:
        text = rules.nested(inputs[name])
        if tags is not None:
            arguments = tagged_input(tags, text)
        elif calls == "gemma4":
            mark = rules.text(QUOTE)
            arguments = f'"{{input:" {mark} {text} {mark} "}}"'
        else:
            arguments = json_input(text)
    elif tags is not None:
        arguments = tagged_arguments(rules, tags, name, schema, strict=strict)
    elif calls == "gemma4":
        arguments = gemma_arguments(rules, name, schema, strict=strict)
    else:
        arguments = rules.json(schema, f"the tool {name}", strict=strict)
    begun = f" {_ID} ".join(map(rules.text, head.split("{id}")))
    return rules.add(f"{begun} {arguments} {rules.text(syntax.tail)}")


def _shaped(
    shape: CallShape,
    tools: Iterable[Mapping[str, Any]],
    marker: Marker,
    strict: Collection[str],
    inputs: Mapping[str, str],
    *,
    parallel: bool,
    forced: bool,
) -> CallGrammar:
    """Returns the grammar of replies with calls of a shape."""
    rules = Rules(marker, dict.fromkeys(shape.marks()))
    calls = []
    for function in (tool["function"] for tool in tools):
        name = function["name"]
        if shape.kind != "json":
            _check_name(name)
        schema = _object_schema(name, function.get("parameters"), strict=name in strict)
        text = rules.nested(inputs[name]) if name in inputs else None
        calls.append(shaped_call(rules, shape, name, schema, text, strict=name in strict))
    call = f"({' | '.join(calls)}) {rules.text(shape.after)}"
    separator, close = shape.between + shape.before, shape.close
    # White space that separates calls and also ends them comes first: a grammar does not go back behind it.
    space = shared(separator, close)
    space = space[: len(space) - len(space.lstrip())] if parallel else ""
    call = f"{call} {rules.text(space)}"
    more = f"({rules.text(separator.removeprefix(space))} {call})*" if parallel and separator else ""
    rest = f"{call} {more} {rules.text(close.removeprefix(space))}"
    opened = shape.open + shape.before
    if forced:
        return CallGrammar(rules.grammar(f"{rules.text(opened)} {rest}"))
    if shape.bare:
        # Without a marker, the first character distinguishes a call from an answer.
        answer = rf"/\s*[^{re.escape(shape.marker[0])}\s](?s:.*)/"
        return CallGrammar(rules.grammar(f"{rules.text(opened)} {rest} | ANSWER |", ANSWER=answer))
    if not is_mark(shape.marker):
        raise UnsupportedCallsError(f"the model's calls begin with the word {shape.marker!r}, expected a marker")
    return CallGrammar(rules.grammar(f"{rules.text(opened.removeprefix(shape.marker))} {rest}"), shape.marker)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UnsupportedCallsError(f"{name!r}: the model's call format does not allow such a name")


def _object_schema(tool: str, schema: Mapping[str, Any] | None, *, strict: bool) -> Mapping[str, Any]:
    """Returns the schema of a tool's arguments, which are an object in every call format and in every API.

    Raises:
        UnsupportedCallsError: The schema is strict, and does not describe an object.
    """
    if not schema:
        return {"type": "object", "properties": {}}
    types = schema.get("type", "object")
    if strict and "object" not in (types if isinstance(types, list) else [types]):
        raise UnsupportedCallsError(f"{tool}: its schema: got the type {types}, expected the type object")
    return {**schema, "type": "object"}


def harmony_answer(rule: str, marker: Marker) -> str:
    """Returns the grammar of a structured answer that follows the message with the reasoning.

    Args:
        rule: The body of the answer's rule, such as `%json {…}`.
        marker: Returns the grammar of a marker.
    """
    start, role, channel = _HARMONY_REPLY
    pieces: Sequence[str] = (marker(start), literal(role), marker(channel), literal("final"), marker("<|message|>"))
    return f"start: {' '.join(pieces)} answer\nanswer: {rule}\n"
