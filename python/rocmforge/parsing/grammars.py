"""Grammars of tool calls: what a model may write where it has to call, or where its calls have to fit their schemas.

They are in the syntax of Lark, as `StructuredOutputsParams(grammar=…)` takes it. The text that one allows is what the
model was trained to write, and what `OutputParser` reads.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocmforge.parsing.formats import CallForm, ChatFormat
from rocmforge.parsing.gemma_arguments import QUOTE, gemma_arguments
from rocmforge.parsing.lark import Marker, Rules, UnsupportedCallsError, literal
from rocmforge.parsing.xml_arguments import TAGS, tagged_arguments

_NAME = re.compile(r"[\w.:/-]+")
# The header of a reply in harmony, behind the message that holds its thoughts.
_HARMONY_REPLY = ("<|start|>", "assistant", "<|channel|>")


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
    "gemma4": _Form(
        ("<|tool_call>", "call:"), "{name}", "", "<tool_call|>", "", ("<|tool_call>", "<tool_call|>", QUOTE)
    ),
    "harmony": _Form(
        (*_HARMONY_REPLY, "commentary to=functions."), "{name} <|constrain|>json<|message|>", "", "", None,
        ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"),
    ),
}  # fmt: skip
# The form of Mistral's older models: all calls in one list.
_MISTRAL_LIST = _Form(
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
    if calls is None:
        raise UnsupportedCallsError("the model's chat template has no form of calls that could be forced")
    form = _MISTRAL_LIST if calls == "mistral" and "[ARGS]" not in template else _FORMS[calls]
    rules = Rules(marker, form.markers)
    call = f"({' | '.join(_call(rules, calls, form, tool['function'], strict) for tool in tools)})"
    is_list = form is _MISTRAL_LIST
    opened = rules.text("".join(form.open))
    # In a list, what opens and closes stands around all calls.
    again = "" if is_list else opened
    close = rules.text(form.close)
    more = (
        f"({rules.text(form.between)} {again} {call} {'' if is_list else close})*" if form.between is not None else ""
    )
    rest = f"{call} {'' if is_list else close} {more if parallel else ''} {close if is_list else ''}"
    if forced:
        return CallGrammar(rules.grammar(f"{opened} {rest}"))
    if calls == "harmony":
        answer = f"{rules.text(''.join(_HARMONY_REPLY) + 'final<|message|>')} ANYTHING"
        return CallGrammar(rules.grammar(f"{opened} {rest} | {answer}", ANYTHING=r"/(?s:.*)/"))
    if not form.open:
        # Without a marker a call is told from an answer by its first character.
        return CallGrammar(rules.grammar(f"{rest} | ANSWER |", ANSWER=r"/\s*[^{\s](?s:.*)/"))
    return CallGrammar(rules.grammar(f"{rules.text(''.join(form.open[1:]))} {rest}"), form.open[0])


def _call(
    rules: Rules, calls: CallForm, form: _Form, function: Mapping[str, Any], strict_tools: Collection[str]
) -> str:
    """Adds the rule of a call without what opens and closes it; returns the rule's name."""
    name = function["name"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    strict = name in strict_tools
    if "{name}" in form.head and not _NAME.fullmatch(name):
        raise UnsupportedCallsError(f"{name!r}: the model's form of calls has no place for such a name")
    head = form.head.format(name=name, json=json.dumps(name, ensure_ascii=False))
    if calls in TAGS:
        arguments = tagged_arguments(rules, TAGS[calls], name, schema, strict=strict)
    elif calls == "gemma4":
        arguments = gemma_arguments(rules, name, schema, strict=strict)
    else:
        arguments = rules.json(schema, strict=strict)
    return rules.add(f"{rules.text(head)} {arguments} {rules.text(form.tail)}")


def harmony_answer(form: str, marker: Marker) -> str:
    """The grammar of an answer of a certain form, behind the message that holds the thoughts.

    Args:
        form: A rule's body, such as `%json {…}`.
        marker: Gives the grammar of a marker.
    """
    start, role, channel = _HARMONY_REPLY
    pieces: Sequence[str] = (marker(start), literal(role), marker(channel), literal("final"), marker("<|message|>"))
    return f"start: {' '.join(pieces)} form\nform: {form}\n"
