"""Converts conversations of OpenAI's Responses API for chat templates, and truncates long ones."""

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from rocmforge._rocmforge import SamplingParams
from rocmforge.prompts import ChatOptions
from rocmforge.server.answers.generation import Call, Client
from rocmforge.server.answers.sealed import opened
from rocmforge.server.chat.rules import ReplyRules, RuledPrompt, ruled_prompt
from rocmforge.server.chat.toolset import ToolSet, input_arguments
from rocmforge.server.chat.turns import TemplateMessage, call_arguments, in_turns
from rocmforge.server.errors import ApiError
from rocmforge.server.images.sent import SentImage
from rocmforge.server.openai.responses.body import ConversationBody
from rocmforge.server.openai.responses.items import (
    AnyItem,
    CallItem,
    CallOutputItem,
    CompactionItem,
    CustomCallItem,
    HostedCallItem,
    ImagePart,
    InputItem,
    LocalShellOutputItem,
    MessageItem,
    Part,
    ReasoningItem,
    ReferenceItem,
    ShellOutputItem,
    give_ids,
)
from rocmforge.server.openai.responses.stored import Item, ResponseStore
from rocmforge.server.service import Service

_SUMMARY = "What was said so far, in short:\n"


_ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[InputItem])


class Said(NamedTuple):
    """A conversation: the items of a request, and those of the answer that it continues."""

    before: list[Item]
    input: list[AnyItem]
    items: list[AnyItem]
    """All of it."""


def said(body: ConversationBody, store: ResponseStore, client: Client) -> Said:
    """Returns the conversation of a request, with its stored items.

    Raises:
        ApiError: It names an answer or an item that is not stored.
    """
    before: list[Item] = []
    if body.previous_response_id is not None:
        before = store.get(client, body.previous_response_id, "previous_response_id", 400).conversation()
    given = [*body.input]
    if references := [item.id for item in given if isinstance(item, ReferenceItem)]:
        found = store.items(client, references)
        given = _ITEMS.validate_python([found[item.id] if isinstance(item, ReferenceItem) else item for item in given])
    give_ids(given)
    return Said(before, given, [*_ITEMS.validate_python(before), *given])


def template_messages(
    instructions: str | None, items: Sequence[AnyItem], tools: ToolSet, num_before: int = 0
) -> list[TemplateMessage]:
    """Returns the conversation for chat templates: consecutive items of the assistant are one message.

    Args:
        instructions: The system prompt, if there is one.
        items: The conversation.
        tools: The tools as the model sees them.
        num_before: The number of items that are not the request's own, but of the answer that it continues.

    Raises:
        ApiError: An output belongs to no call, or the assistant has an image.
    """
    made: list[TemplateMessage] = []
    if instructions is not None:
        made.append({"role": "system", "content": instructions})
    called: dict[str, str] = {}
    for index, item in enumerate(items):
        place = f"input.{index - num_before}" if index >= num_before else "previous_response_id"
        match item:
            case CallOutputItem() | LocalShellOutputItem() | ShellOutputItem():
                made.append(_output(item, called, f"{place}.output"))
            case MessageItem(role="assistant"):
                turn = _assistant_turn(made)
                said = _content(item.content, f"{place}.content")
                if not isinstance(said, str):
                    raise ApiError(400, f"{place}.content: got an image of the assistant, expected text", param=place)
                turn["content"] = "\n".join(text for text in (turn["content"], said) if text)
            case MessageItem():
                role = "system" if item.role == "developer" else item.role
                made.append({"role": role, "content": _content(item.content, f"{place}.content")})
            case ReasoningItem():
                if text := item.text():
                    _assistant_turn(made)["reasoning_content"] = text
            case CompactionItem():
                if summary := opened(item.encrypted_content):
                    made.append({"role": "user", "content": _SUMMARY + summary})
            case CallItem() | CustomCallItem() | HostedCallItem():
                name, arguments = _called(item, tools)
                called[item.call_id] = name
                if isinstance(item, HostedCallItem) and item.id is not None:
                    called[item.id] = name
                function = {"name": name, "arguments": arguments}
                calls = _assistant_turn(made).setdefault("tool_calls", [])
                calls.append({"id": item.call_id, "type": "function", "function": function})
    return in_turns(made)


def fitting_prompt(
    service: Service,
    rules: ReplyRules,
    messages: Sequence[TemplateMessage],
    params: SamplingParams,
    call: Call,
    *,
    cuts: bool,
) -> RuledPrompt:
    """Returns the prompt of a conversation; if it is too long, of its last turns.

    Args:
        service: The model.
        rules: The rules of the reply.
        messages: The conversation.
        params: The parameters without the rules.
        call: The request and its client.
        cuts: True if a conversation that is too long loses its first turns.

    Raises:
        ApiError: The prompt is still too long, or the model cannot do what the rules ask.
    """
    num_system = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    turns = [at for at, message in enumerate(messages) if at > num_system and message["role"] == "user"]
    made: dict[int, RuledPrompt] = {}

    def fits(begin: int) -> bool:
        try:
            kept = [*messages[:num_system], *messages[begin:]]
            made[begin] = ruled_prompt(service, rules, kept, ChatOptions(), params, call)
        except ApiError as error:
            if error.code == "context_length_exceeded":
                return False
            raise
        return True

    if not cuts or not turns:
        return ruled_prompt(service, rules, messages, ChatOptions(), params, call)
    if fits(num_system):
        return made[num_system]
    # Fewer turns make a shorter prompt, so a binary search finds the most that fit.
    first = bisect.bisect_left(turns, x=True, key=fits)
    return (
        made[turns[first]]
        if first < len(turns)
        else ruled_prompt(service, rules, messages, ChatOptions(), params, call)
    )


def _output(
    item: CallOutputItem | LocalShellOutputItem | ShellOutputItem, called: dict[str, str], place: str
) -> TemplateMessage:
    """Returns the message with the output of a call."""
    call_id = item.call_id or item.id or ""
    if call_id not in called:
        raise ApiError(
            400, f"input: got an output of the call {call_id!r}, expected that call before it", param="input"
        )
    if isinstance(item, ShellOutputItem):
        streams = (str(part.get(name) or "") for part in item.output for name in ("stdout", "stderr"))
        content: str | list[dict[str, Any]] = "\n".join(filter(None, streams))
    else:
        content = _content(item.output, place)
    is_patch = isinstance(item, CallOutputItem) and item.type == "apply_patch_call_output"
    if is_patch and isinstance(content, str):
        content = "\n".join(filter(None, (item.status, content)))
    return {"role": "tool", "tool_call_id": call_id, "name": called[call_id], "content": content}


def _called(item: CallItem | CustomCallItem | HostedCallItem, tools: ToolSet) -> tuple[str, dict[str, object]]:
    """Returns the name and the arguments of a call as the model sees them."""
    match item:
        case CallItem():
            return tools.name_of(item.name, item.namespace), call_arguments(item.arguments)
        case CustomCallItem():
            return tools.name_of(item.name, item.namespace), {**input_arguments(item.input)}
    return item.type.removesuffix("_call"), {**(item.action or item.operation or {})}


def _assistant_turn(made: list[TemplateMessage]) -> TemplateMessage:
    """Returns the assistant's current message, which it begins if there is none."""
    if not made or made[-1]["role"] != "assistant":
        made.append({"role": "assistant", "content": ""})
    return made[-1]


def _content(parts: Sequence[Part], place: str) -> str | list[dict[str, Any]]:
    """Returns texts as one, and a list of parts only if there is an image."""
    if not any(isinstance(part, ImagePart) for part in parts):
        return "\n".join(part.text for part in parts if not isinstance(part, ImagePart))
    return [
        SentImage(f"{place}.{at}.image_url", url=part.image_url).part()
        if isinstance(part, ImagePart)
        else {"type": "text", "text": part.text}
        for at, part in enumerate(parts)
    ]
