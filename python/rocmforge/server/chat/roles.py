"""Puts the messages of a conversation into roles and texts that the chat template accepts."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rocmforge.parsing.needs import TemplateNeeds
from rocmforge.parsing.shapes import CallShape
from rocmforge.server.chat.turns import TemplateMessage, in_turns, is_blank, parts_of


def in_roles(messages: Sequence[Mapping[str, Any]], needs: TemplateNeeds) -> list[TemplateMessage]:
    """Returns the messages in the order of roles that the template accepts.

    A system message that it refuses becomes part of the user's turn. A conversation without a question gets an empty
    one where it needs one. Where it wants questions and answers in turn, answers in a row are merged, and empty
    messages fill the gaps.
    """
    made = [dict(message) for message in messages]
    if needs.system == "none":
        made = [{**message, "role": "user"} if message["role"] == "system" else message for message in made]
    if needs.system != "anywhere" or needs.alternates:
        made = in_turns(made)
    if needs.question:
        # Also where a question comes later, as it does a turn later: the beginning of the prompt must stay as it is.
        place = next((n for n, message in enumerate(made) if message["role"] != "system"), len(made))
        if place == len(made) or made[place]["role"] != "user":
            made.insert(place, {"role": "user", "content": ""})
    if needs.filler:
        made = [{**message, "content": needs.filler} if _is_empty(message) else message for message in made]
    if needs.alternates:
        made = list(_alternating(_merged_answers(made), needs.filler))
    return [_as_text(message) for message in made] if needs.texts_only else made


def with_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    needs: TemplateNeeds,
    shape: CallShape | None,
) -> list[TemplateMessage]:
    """Returns the messages with tools that the template does not read from its own variable.

    Args:
        messages: The conversation.
        tools: The tools, in OpenAI's format.
        needs: The needs of the template.
        shape: The shape of the model's calls; without it, tools are not described.
    """
    made = [dict(message) for message in messages]
    if needs.tools == "variable" or not tools or shape is None:
        return made
    if not made or made[0]["role"] != "system":
        made.insert(0, {"role": "system", "content": ""})
    system = made[0]
    if needs.tools == "message":
        system["tools"] = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        return made
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = (
        f"You can call these functions:\n\n{functions}\n\nWrite a call in exactly this format. Replace NAME, and write "
        f"the arguments that its parameters describe:\n\n{shape.example()}"
    )
    if isinstance(system["content"], str):
        system["content"] = f"{system['content']}\n\n{text}".lstrip()
    else:
        system["content"] = [*system["content"], {"type": "text", "text": text}]
    return made


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and not message.get("tool_calls")


def _is_empty(message: Mapping[str, Any]) -> bool:
    return _is_answer(message) and is_blank(message.get("content"))


def _merged_answers(messages: Iterable[TemplateMessage]) -> Iterator[TemplateMessage]:
    """Yields messages; answers that follow each other are merged."""
    for is_answer, group in groupby(messages, _is_answer):
        first, *others = group
        if not is_answer or not others:
            yield first
            yield from others
            continue
        answers = [first, *others]
        merged = {**first, "content": [part for each in answers for part in parts_of(each.get("content") or "")]}
        if thoughts := [each["reasoning_content"] for each in answers if each.get("reasoning_content")]:
            merged["reasoning_content"] = "\n".join(thoughts)
        yield merged


def _alternating(messages: Iterable[TemplateMessage], filler: str) -> Iterator[TemplateMessage]:
    """Yields questions and answers in turn; messages with calls and their results do not count."""
    # The role that the last question or answer had, and whether there was any message but the system's.
    last, begun = "assistant", False
    for message in messages:
        role = message["role"]
        if role != "system" and not begun:
            begun = True
            if role != "user":
                yield {"role": "user", "content": ""}
                last = "user"
        if message.get("tool_calls") and last == "assistant":
            # The gap is filled before the calls: whether an answer follows their results is known a turn later, and
            # this part of the prompt must stay as it is.
            yield {"role": "user", "content": ""}
            last = "user"
        if role == "user" or _is_answer(message):
            if role == last:
                yield (
                    {"role": "user", "content": ""} if role == "assistant" else {"role": "assistant", "content": filler}
                )
            last = role
        yield message


def _as_text(message: TemplateMessage) -> TemplateMessage:
    """Joins the parts of a content that has only texts."""
    content = message.get("content")
    if not isinstance(content, list) or any(part["type"] != "text" for part in content):
        return message
    return {**message, "content": "\n".join(part["text"] for part in content)}
