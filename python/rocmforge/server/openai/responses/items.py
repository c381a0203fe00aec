"""Items of OpenAI's Responses API, the parts of a conversation."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Union, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag

from rocmforge.server.answers.sealed import opened
from rocmforge.server.bodies import Body, JsonObject, Text
from rocmforge.server.chat.structured import TextFormat
from rocmforge.server.ignored import CACHED, RESOLUTION, TOLD_BEFORE
from rocmforge.server.openai.responses.tools import AnyTools

Status = Literal["in_progress", "completed", "incomplete"]
_CALLER = {"async": TOLD_BEFORE, "caller": TOLD_BEFORE}


class TextPart(Body):
    """A text, of a request or of an answer."""

    ignored: ClassVar[Mapping[str, str]] = {
        "annotations": TOLD_BEFORE,
        "cache_control": CACHED,
        "logprobs": TOLD_BEFORE,
        "prompt_cache_breakpoint": CACHED,
    }

    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(Body):
    """The text with which an assistant refused to answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """The text."""
        return self.refusal


class ImagePart(Body):
    """An image in a message, or in the answer of a tool."""

    ignored: ClassVar[Mapping[str, str]] = {
        "cache_control": CACHED,
        "detail": RESOLUTION,
        "prompt_cache_breakpoint": CACHED,
    }

    type: Literal["input_image"]
    image_url: str = Field(description="A `data:` URL, or a URL of a host that the operator allows.")


Part = Annotated[TextPart | RefusalPart | ImagePart, Field(discriminator="type")]


def _as_input(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Parts = Annotated[list[Part], BeforeValidator(_as_input, json_schema_input_type=str | list[Part])]
"""A text or its parts."""


class Item(Body):
    """The fields that all items have."""

    id: Text | None = None
    status: Status | None = None


class MessageItem(Item):
    """A message."""

    ignored: ClassVar[Mapping[str, str]] = {"phase": TOLD_BEFORE}

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class ReasoningPart(Body):
    """A part of the reasoning."""

    type: Literal["reasoning_text", "text"]
    text: str


class SummaryPart(Body):
    """A part of a summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class ReasoningItem(Item):
    """The reasoning of the assistant."""

    type: Literal["reasoning"]
    summary: list[SummaryPart] = Field(default_factory=list, description="It is used if there is no other text.")
    content: list[ReasoningPart] = Field(default_factory=list)
    encrypted_content: Text | None = Field(None, description="The reasoning as the server encoded it.")

    def text(self) -> str:
        """Returns the reasoning; if there is only a summary, as other servers send it, the summary."""
        whole = "\n".join(part.text for part in self.content) or opened(self.encrypted_content or "")
        return whole or "\n".join(part.text for part in self.summary)


class CalledItem(Item):
    """The fields that calls of the client's tools have."""

    ignored: ClassVar[Mapping[str, str]] = _CALLER

    call_id: str
    name: str
    namespace: str | None = None


class CallItem(CalledItem):
    """A call of the assistant."""

    type: Literal["function_call"]
    arguments: str = Field(description="A JSON object, as text.")


class CustomCallItem(CalledItem):
    """A call of a tool that takes a text."""

    type: Literal["custom_tool_call"]
    input: str


class CallOutputItem(Item):
    """The answer of a tool."""

    ignored: ClassVar[Mapping[str, str]] = _CALLER | {
        "acknowledged_safety_checks": TOLD_BEFORE,
        "max_output_length": TOLD_BEFORE,
        "name": "The call already has it.",
        "namespace": "The call already has it.",
    }

    type: Literal["function_call_output", "custom_tool_call_output", "apply_patch_call_output"]
    call_id: str
    output: Parts = Field(default_factory=list)
    # The result of applying a patch.
    status: Literal["in_progress", "completed", "incomplete", "failed"] | None = None  # type: ignore[assignment]


class HostedCallItem(Item):
    """A call of one of OpenAI's tools that the client ran."""

    ignored: ClassVar[Mapping[str, str]] = _CALLER | {"environment": TOLD_BEFORE}

    type: Literal["local_shell_call", "shell_call", "apply_patch_call"]
    call_id: str
    action: JsonObject | None = None
    operation: JsonObject | None = None


class LocalShellOutputItem(Item):
    """The output of a local shell, which names its call by `id`."""

    type: Literal["local_shell_call_output"]
    call_id: str | None = None
    output: Parts


class ShellOutputItem(Item):
    """The output of a shell's commands."""

    ignored: ClassVar[Mapping[str, str]] = _CALLER | {"max_output_length": TOLD_BEFORE}

    type: Literal["shell_call_output"]
    call_id: str
    output: list[JsonObject]


class ToolsItem(Item):
    """Tools that a conversation has from this item on."""

    ignored: ClassVar[Mapping[str, str]] = {"call_id": TOLD_BEFORE, "execution": TOLD_BEFORE, "role": TOLD_BEFORE}

    type: Literal["additional_tools", "tool_search_output"]
    tools: list[AnyTools]


class UpdatedReasoning(Body):
    """The reasoning effort from this item on."""

    effort: Text | None = None


class UpdatedText(Body):
    """The format of answers from this item on."""

    format: TextFormat


class UpdateItem(Item):
    """Settings of the answers from this item on."""

    type: Literal["configuration_update"]
    reasoning: UpdatedReasoning | None = None
    text: UpdatedText | None = None


class CompactionItem(Item):
    """A conversation that the server has compacted."""

    type: Literal["compaction"]
    encrypted_content: Text


class ReferenceItem(Body):
    """An item of a stored answer, by its id."""

    type: Literal["item_reference"]
    id: Text


class ProviderItem(Item):
    """Work of OpenAI's own tools, which the conversation does not need."""

    model_config = Body.model_config | {"extra": "allow"}

    type: Literal[
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "tool_search_call",
        "web_search_call",
    ]
    status: Any = None


AnyItem = (
    MessageItem
    | ReasoningItem
    | CallItem
    | CustomCallItem
    | CallOutputItem
    | HostedCallItem
    | LocalShellOutputItem
    | ShellOutputItem
    | ToolsItem
    | UpdateItem
    | CompactionItem
    | ReferenceItem
    | ProviderItem
)


def _type(value: Any) -> str | None:
    """Returns the type of an item; messages and references may omit it."""
    if isinstance(value, dict):
        kind = value.get("type") or ("item_reference" if value.keys() == {"id"} else "message")
        return kind if isinstance(kind, str) else None
    return getattr(value, "type", None)


def _tagged(*classes: type[Body]) -> Any:
    """Returns the union of classes, discriminated by each value of their field `type`."""
    tagged = [Annotated[each, Tag(kind)] for each in classes for kind in get_args(each.model_fields["type"].annotation)]
    return Annotated[Union[*tagged], Discriminator(_type)]


InputItem = _tagged(*get_args(AnyItem))
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
}


def new_id(kind: str, number: str | None = None) -> str:
    """Returns an id for an item of a type, with this number or a random one."""
    return f"{_PREFIXES.get(kind, 'item')}_{number or uuid.uuid4().hex}"


def give_ids(items: Sequence[AnyItem]) -> None:
    """Gives each item an id and a status. A conversation has thousands of items, so one random number serves all."""
    rest = uuid.uuid4().hex[8:]
    for index, item in enumerate(items):
        if not isinstance(item, ReferenceItem):
            item.id = item.id or new_id(item.type, f"{index:08x}{rest}")
            item.status = item.status or "completed"
