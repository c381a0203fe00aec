"""Needs of a chat template, found by rendering small conversations.

Templates refuse, or lose, what their authors did not think of: system messages, tools without a description, ids of
other servers, two calls in one message, text beside a call, a question right after a result.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CallIds = Literal["any", "short", "named"]
ToolPlace = Literal["variable", "message", "nowhere"]
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""Renders messages with tools, and whether the prompt begins the assistant's turn. Raises `ValueError` for what the
template refuses."""

USER = {"role": "user", "content": "Question"}
# The format of ids that most clients send, and the format that Mistral's templates ask for.
_IDS: Mapping[CallIds, str] = {"any": "call_0123456789abcdefABCDEFGH", "short": "abcDEF789"}
# Some servers number their calls. Templates that cut 9 characters off an id refuse such ids.
_NUMBERED = "call_0"
_SYSTEM = {"role": "system", "content": "System"}
_ANSWER = {"role": "assistant", "content": "Answer"}
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    """The needs of a chat template."""

    descriptions: bool = False
    """True if each tool has to have a description, and its schema properties."""
    tools: ToolPlace = "variable"
    """Where the template reads tools: in its variable, in the system message as a JSON text, or nowhere."""
    ids: CallIds = "any"
    """The ids of calls: `short` has 9 letters and digits, `named` is `functions.NAME:NUMBER`."""
    single_calls: bool = False
    """True if a message may have one call only."""
    text_arguments: bool = False
    """True if the arguments of calls have to be a text that holds JSON."""
    null_content: bool = False
    """True if calls are written only where the content is `None`, not where it is empty."""
    calls_apart: bool = False
    """True if a text and calls in one message are not both written, and are as two messages."""
    writes_calls: bool = True
    """True if the template writes the calls of a message at all."""
    writes_results: bool = True
    """True if the template writes the results of calls."""
    images_in_results: bool = True
    """True if images in the results of tools are written as those of a user."""
    system: Literal["anywhere", "first", "none"] = "anywhere"
    """Where system messages are accepted."""
    alternates: bool = False
    """True if an answer has to stand between two questions, also after calls, and a question before each answer."""
    question: bool = False
    """True if a conversation must have a message of the user."""
    filler: str = ""
    """The text of an answer that has none."""
    texts_only: bool = False
    """True if a content has to be a text, not a list of texts."""


NO_NEEDS = TemplateNeeds()


def probe_tool(name: str, description: str | None = "Text") -> dict[str, Any]:
    """A tool for a conversation that is rendered to see what the template makes of it."""
    function = {"name": name, "parameters": SCHEMA} | ({} if description is None else {"description": description})
    return {"type": "function", "function": function}


def probe_call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    """A call for such a conversation."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], content: str | None = "") -> dict[str, Any]:
    """An assistant's message with calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def tried(render: Render, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str | None:
    """The text of a conversation; `None` where the template refuses it."""
    try:
        return render(messages, tools, False)
    except ValueError:
        return None


def renderer(apply_chat_template: Callable[..., str], chat_template: str | None = None) -> Render:
    """Renders conversations by a tokenizer's chat template.

    Args:
        apply_chat_template: That of the `Tokenizer`.
        chat_template: Replaces the file's template.
    """

    def render(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], begins: bool) -> str:
        replaced = {} if chat_template is None else {"chat_template": chat_template}
        return apply_chat_template(messages, tools=tools or None, add_generation_prompt=begins, **replaced)

    return render


def find_needs(render: Render) -> TemplateNeeds:
    """Finds what a chat template needs.

    Args:
        render: Renders conversations by the template.
    """
    turns = _turns(render)
    tool = probe_tool("probe")
    small = {"type": "function", "function": {"name": "probe", "description": "Text", "parameters": {"type": "object"}}}
    described = tried(render, [USER], [tool])
    bare = any(tried(render, [USER], [each]) is None for each in (probe_tool("probe", None), small))
    turns["descriptions"] = bare and described is not None
    if described is not None and "probe" not in described:
        named = json.dumps([tool["function"]])
        text = tried(render, [{**_SYSTEM, "tools": named}, USER], [])
        turns["tools"] = "message" if text is not None and named in text else "nowhere"
    values = {"key": "value0"}

    def shown(*arguments: Any, ids: str, content: str | None) -> str | None:
        """The text of a message with calls; `None` where the template refuses it, or the results behind it."""
        calls = [probe_call("probe", each, f"{ids[:-1]}{number}") for number, each in enumerate(arguments)]
        results = [{"role": "tool", "name": "probe", "tool_call_id": call["id"], "content": "Result"} for call in calls]
        message = calling(*calls, content=content)
        taken = tried(render, [USER, message, *results], [tool]) is not None
        return tried(render, [USER, message], [tool]) if taken else None

    variants: list[tuple[CallIds, str, Any, str | None]] = [
        (kind, ids, arguments, content)
        for content in ("", None)
        for kind, ids in _IDS.items()
        for arguments in (values, json.dumps(values))
    ]
    taken = [
        (variant, text)
        for variant in variants
        if (text := shown(variant[2], ids=variant[1], content=variant[3])) is not None
    ]
    if not taken:
        return TemplateNeeds(**turns, writes_calls=False, writes_results=False)
    (kind, ids, arguments, content), text = next((each for each in taken if "value0" in each[1]), taken[0])
    if arguments is values and str(values) in text:
        # The template does not refuse an object, but writes it as Python does.
        arguments = json.dumps(values)
    call = probe_call("called", arguments, ids)
    text = tried(render, [USER, calling(call, content=content)], [tool]) or ""
    if ids in text and "called" not in text:
        kind = "named"
    elif kind == "any" and shown(arguments, ids=_NUMBERED, content=content) is None:
        kind, ids = "short", _IDS["short"]
    other = json.dumps({"key": "value1"}) if isinstance(arguments, str) else {"key": "value1"}
    two = shown(arguments, other, ids=ids, content=content)
    # Some templates do not refuse a second call, but leave it out.
    single = two is None or ("value0" in two and "value1" not in two)
    call = probe_call("probe", arguments, ids)
    before = [USER, calling(call, content=content)]
    beside = tried(render, [USER, calling(call, content="Answer")], [tool]) or ""
    behind = tried(render, [USER, _ANSWER, calling(call, content=content)], [tool]) or ""
    writes = "value0" in text
    apart = writes and not _has_both(beside) and _has_both(behind)
    result = {"role": "tool", "name": "probe", "tool_call_id": ids}
    shows_result = "Result" in (tried(render, [*before, {**result, "content": "Result"}], [tool]) or "")
    of_users = _image_text(render, [], {"role": "user"}, [tool])
    # A template that writes nothing for an image is not made for them.
    shows = not of_users or _image_text(render, before, result, [tool]) == of_users
    return TemplateNeeds(
        **turns, ids=kind, single_calls=single, text_arguments=isinstance(arguments, str), null_content=content is None,
        calls_apart=apart, writes_calls=writes and shows_result, writes_results=shows_result, images_in_results=shows,
    )  # fmt: skip


def _has_both(text: str) -> bool:
    """True if the text and the call of a probe are in a rendered conversation."""
    return "Answer" in text and "value0" in text


def _turns(render: Render) -> dict[str, Any]:
    """Returns the needs of a chat template in conversations without tools, by name."""

    def accepts(*messages: Mapping[str, Any]) -> bool:
        return tried(render, messages, []) is not None

    if not accepts(USER, _ANSWER, USER):
        return {}
    needs: dict[str, Any] = {}
    # Some templates do not refuse a late system message, but drop it, or drop the first one.
    late = tried(render, [_SYSTEM, USER, _ANSWER, {**_SYSTEM, "content": "Later"}, USER], []) or ""
    first = tried(render, [_SYSTEM, USER], [])
    if "System" not in (first or ""):
        needs["system"] = "none"
    elif "System" not in late or "Later" not in late.partition("Answer")[2]:
        needs["system"] = "first"
    needs["question"] = first is not None and not accepts(_SYSTEM)
    needs["alternates"] = not accepts(_ANSWER, USER) or not accepts(USER, _ANSWER, _ANSWER, USER)
    fillers = ("", " ", "…")
    needs["filler"] = next((each for each in fillers if accepts(USER, {**_ANSWER, "content": each}, USER)), "")
    part = {"type": "text", "text": "Text"}
    needs["texts_only"] = not accepts({"role": "user", "content": [part, part]})
    return needs


def _image_text(
    render: Render, before: Sequence[Mapping[str, Any]], message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]
) -> int | None:
    """The number of letters that a template writes for an image in the last message; `None` where it refuses one."""
    text = {"type": "text", "text": "Text"}
    texts = [
        tried(render, [*before, {**message, "content": content}], tools)
        for content in ([text], [{"type": "image"}, text])
    ]
    return None if texts[0] is None or texts[1] is None else len(texts[1]) - len(texts[0])
