"""Conversations in Anthropic's form, made into what chat templates take."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.errors import ApiError
from rocmforge.server.sealed import opened
from rocmforge.server.turns import TemplateMessage, in_turns


class CacheControl(Body):
    """Where a client wants a prefix to be cached. Every prefix is, so this changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Body):
    """A text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(Body):
    """Thoughts of an assistant."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field("", description="It holds thoughts that were not shown; else it has no meaning here.")

    def text(self) -> str:
        """The thoughts, shown or not."""
        return self.thinking or opened(self.signature)


class ToolUseBlock(Body):
    """A tool that an assistant has called."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject
    cache_control: CacheControl | None = None


def _as_blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[list[TextBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])]
"""A text or text blocks."""


class ToolResultBlock(Body):
    """The answer of a tool."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list)
    is_error: bool = Field(default=False, description="Whether the tool failed; the model then reads `Error: ` first.")
    cache_control: CacheControl | None = None


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
# Which blocks the messages of a role may have.
_ALLOWED = {
    "system": (TextBlock,),
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, ToolUseBlock),
}


class MessageParam(Body):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block])]

    @model_validator(mode="after")
    def _blocks_of_the_role(self) -> Self:
        wrong = [block.type for block in self.content if not isinstance(block, _ALLOWED[self.role])]
        if wrong:
            raise ValueError(f"no {wrong[0]} block in a message of the role {self.role}")
        return self


class Tool(Body):
    """A tool that the client runs."""

    type: Literal["custom"] = "custom"
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: JsonObject
    cache_control: CacheControl | None = None
    strict: bool | None = Field(None, description="Whether arguments have to fit the schema.")
    eager_input_streaming: bool = Field(default=False, description="Arguments are streamed in any case.")


class ToolChoice(Body):
    """Whether tools are called: as the model likes, not at all, one of them, or one that is named."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = Field(default=False, description="Whether there may be one call only.")

    @model_validator(mode="after")
    def _name_of_the_tool(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name with the type tool, and with no other")
        return self


def template_messages(system: Sequence[TextBlock], messages: Sequence[MessageParam]) -> list[TemplateMessage]:
    """The conversation as chat templates expect it: roles take turns, results of tools are messages of their own.

    Raises:
        ApiError: A result belongs to no call, or the last message calls a tool.
    """
    if messages[-1].role == "assistant" and any(isinstance(block, ToolUseBlock) for block in messages[-1].content):
        last = f"messages.{len(messages) - 1}"
        raise ApiError(400, f"{last}: got a tool_use block at the end, expected a tool_result after it", param=last)
    made: list[TemplateMessage] = []
    if system:
        made.append({"role": "system", "content": _content(system)})
    # Names of the tools, by the id of the call.
    called: dict[str, str] = {}
    turn: list[Block] = []
    for index, message in enumerate(messages):
        if message.role == "user":
            results = [block for block in message.content if isinstance(block, ToolResultBlock)]
            made += [_result(block, index, called) for block in results]
        turn += message.content
        if index + 1 == len(messages) or messages[index + 1].role != message.role:
            made += _turn(message.role, turn)
            called |= {block.id: block.name for block in turn if isinstance(block, ToolUseBlock)}
            turn = []
    return in_turns(made)


def _turn(role: str, blocks: Sequence[Block]) -> list[TemplateMessage]:
    """The message that consecutive messages of a role become; none if all in them are results of tools."""
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    if not texts and any(isinstance(block, ToolResultBlock) for block in blocks):
        return []
    message: TemplateMessage = {"role": role, "content": _content(texts)}
    if thoughts := [text for block in blocks if isinstance(block, ThinkingBlock) and (text := block.text())]:
        message["reasoning_content"] = "\n".join(thoughts)
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return [message | {"tool_calls": calls} if calls else message]


def _result(block: ToolResultBlock, index: int, called: dict[str, str]) -> TemplateMessage:
    if block.tool_use_id not in called:
        place = f"messages.{index}.content"
        raise ApiError(
            400,
            f"{place}: got a tool_result for {block.tool_use_id!r}, expected the id of a tool_use block before it",
            param=place,
        )
    text = "\n".join(part.text for part in block.content)
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "name": called[block.tool_use_id],
        "content": f"Error: {text}" if block.is_error else text,
    }


def _content(texts: Sequence[TextBlock]) -> str | list[dict[str, Any]]:
    """No text and a single one are strings, which every template takes."""
    if len(texts) < 2:
        return texts[0].text if texts else ""
    return [{"type": "text", "text": block.text} for block in texts]
