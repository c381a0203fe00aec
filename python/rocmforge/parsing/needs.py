"""Needs of a chat template in conversations with tools, found by rendering small ones.

Templates refuse, or lose, what their authors did not think of: tools without a description, ids of other servers, two
calls in one message, arguments that are an object or a text.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

CallIds = Literal["any", "short", "named"]
Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], bool], str]
"""Renders messages with tools, and whether the prompt begins the assistant's turn. Raises `ValueError` for what the
template refuses."""

USER = {"role": "user", "content": "Question"}
# The form of the ids that clients send most, and the form that Mistral's templates ask for.
_IDS: Mapping[CallIds, str] = {"any": "call_0123456789abcdefABCDEFGH", "short": "abcDEF789"}
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    """The needs of a chat template."""

    descriptions: bool = False
    """True if each tool has to have a description."""
    ids: CallIds = "any"
    """The ids of calls: `short` has 9 letters and digits, `named` is `functions.NAME:NUMBER`."""
    single_calls: bool = False
    """True if a message may have one call only."""
    text_arguments: bool = False
    """True if the arguments of calls have to be a text that holds JSON."""
    null_content: bool = False
    """True if calls are written only where the content is `None`, not where it is empty."""
    images_in_results: bool = True
    """True if images in the results of tools are written as those of a user."""


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
    tool = probe_tool("probe")
    bare, described = (tried(render, [USER], [each]) for each in (probe_tool("probe", None), tool))
    descriptions = bare is None and described is not None
    values = {"key": "value0"}

    def shown(*arguments: Any, ids: str, content: str | None) -> str | None:
        """The text of a message with calls; `None` where the template refuses it, or the results behind it."""
        calls = [probe_call("probe", each, f"{ids[:-1]}{number}") for number, each in enumerate(arguments)]
        results = [{"role": "tool", "name": "probe", "tool_call_id": call["id"], "content": "Text"} for call in calls]
        message = calling(*calls, content=content)
        taken = tried(render, [USER, message, *results], [tool]) is not None
        return tried(render, [USER, message], [tool]) if taken else None

    forms: list[tuple[CallIds, str, Any, str | None]] = [
        (kind, ids, arguments, content)
        for content in ("", None)
        for kind, ids in _IDS.items()
        for arguments in (values, json.dumps(values))
    ]
    taken = [(form, text) for form in forms if (text := shown(form[2], ids=form[1], content=form[3])) is not None]
    if not taken:
        return TemplateNeeds(descriptions)
    (kind, ids, arguments, content), text = next((each for each in taken if "value0" in each[1]), taken[0])
    if arguments is values and str(values) in text:
        # The template does not refuse an object, but writes it as Python does.
        arguments = json.dumps(values)
    call = probe_call("called", arguments, ids)
    text = tried(render, [USER, calling(call, content=content)], [tool]) or ""
    if ids in text and "called" not in text:
        kind = "named"
    other = json.dumps({"key": "value1"}) if isinstance(arguments, str) else {"key": "value1"}
    two = shown(arguments, other, ids=ids, content=content)
    # Some templates do not refuse a second call, but leave it out.
    single = two is None or ("value0" in two and "value1" not in two)
    call = probe_call("probe", arguments, ids)
    before = [USER, calling(call, content=content)]
    result = {"role": "tool", "name": "probe", "tool_call_id": ids}
    of_users = _image_text(render, [], {"role": "user"}, [tool])
    # A template that writes nothing for an image is not made for them.
    shows = not of_users or _image_text(render, before, result, [tool]) == of_users
    return TemplateNeeds(descriptions, kind, single, isinstance(arguments, str), content is None, shows)


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
