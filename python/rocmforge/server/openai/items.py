"""Items of OpenAI's Responses API: what a conversation consists of, made into what chat templates take."""

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from rocmforge.server.bodies import Body, Text
from rocmforge.server.errors import ApiError
from rocmforge.server.sealed import opened
from rocmforge.server.turns import TemplateMessage, call_arguments, in_turns

Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(Body):
    """A text, of a request or of an answer."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] = Field(default_factory=list, max_length=0)
    logprobs: list[Any] = Field(default_factory=list, max_length=0)


def _as_input(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Parts = Annotated[list[TextPart], BeforeValidator(_as_input, json_schema_input_type=str | list[TextPart])]
"""A text or its parts."""


class MessageItem(Body):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    id: Text | None = None
    status: Status | None = None


class ReasoningPart(Body):
    """A part of the thoughts."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Body):
    """Thoughts of the assistant."""

    type: Literal["reasoning"]
    id: Text | None = None
    summary: list[Any] = Field(default_factory=list, max_length=0)
    content: list[ReasoningPart] = Field(default_factory=list)
    encrypted_content: Text | None = Field(None, description="The thoughts in the form that the server has given.")
    status: Status | None = None

    def text(self) -> str:
        """The thoughts."""
        return "\n".join(part.text for part in self.content) or opened(self.encrypted_content or "")


class CallItem(Body):
    """A call of the assistant."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = Field(description="A JSON object, as text.")
    id: Text | None = None
    status: Status | None = None


class CallOutputItem(Body):
    """The answer of a function."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts
    id: Text | None = None
    status: Status | None = None


AnyItem = MessageItem | ReasoningItem | CallItem | CallOutputItem


def _type(value: Any) -> str | None:
    """The type of an item; messages may leave it out."""
    if isinstance(value, dict):
        kind = value.get("type", "message")
        return kind if isinstance(kind, str) else None
    return getattr(value, "type", None)


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")],
    Discriminator(_type),
]
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


def new_id(kind: str) -> str:
    """An id for an item of a type."""
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"


def with_ids(items: Sequence[AnyItem]) -> list[AnyItem]:
    """The items, each with an id and a status."""
    return [
        item.model_copy(update={"id": item.id or new_id(item.type), "status": item.status or "completed"})
        for item in items
    ]


def template_messages(instructions: str | None, items: Sequence[AnyItem]) -> list[TemplateMessage]:
    """The conversation as chat templates expect it: all that the assistant does in a row is one message.

    Raises:
        ApiError: An output belongs to no call.
    """
    made: list[TemplateMessage] = []
    if instructions is not None:
        made.append({"role": "system", "content": instructions})
    called: dict[str, str] = {}
    for item in items:
        match item:
            case CallOutputItem():
                if item.call_id not in called:
                    raise ApiError(
                        400,
                        f"input: got an output of the call {item.call_id!r}, expected that call before it",
                        param="input",
                    )
                name = called[item.call_id]
                made.append({"role": "tool", "tool_call_id": item.call_id, "name": name, "content": _text(item.output)})
            case MessageItem(role="assistant"):
                turn = _assistant_turn(made)
                turn["content"] = "\n".join(text for text in (turn["content"], _text(item.content)) if text)
            case MessageItem():
                role = "system" if item.role == "developer" else item.role
                made.append({"role": role, "content": _text(item.content)})
            case ReasoningItem():
                if text := item.text():
                    _assistant_turn(made)["reasoning_content"] = text
            case CallItem():
                called[item.call_id] = item.name
                function = {"name": item.name, "arguments": call_arguments(item.arguments)}
                calls = _assistant_turn(made).setdefault("tool_calls", [])
                calls.append({"id": item.call_id, "type": "function", "function": function})
    return in_turns(made)


def _assistant_turn(made: list[TemplateMessage]) -> TemplateMessage:
    """The message of the assistant that is being made, begun if there is none."""
    if not made or made[-1]["role"] != "assistant":
        made.append({"role": "assistant", "content": ""})
    return made[-1]


def _text(parts: Sequence[TextPart]) -> str:
    return "\n".join(part.text for part in parts)
