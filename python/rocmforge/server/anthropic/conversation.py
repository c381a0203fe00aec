"""Converts conversations in Anthropic's format to messages for chat templates."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from rocmforge.server.anthropic.blocks import (
    ALLOWED,
    READ,
    Block,
    Piece,
    ServerToolResultBlock,
    ServerToolUseBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    as_blocks,
    as_part,
    pieces,
)
from rocmforge.server.anthropic.settings import Effort
from rocmforge.server.bodies import Body
from rocmforge.server.chat.turns import TemplateMessage, in_turns
from rocmforge.server.errors import ApiError

# Claude Code sends billing data in this line. Its values change with every request, and it comes first, so that the
# prefix cache would always miss. The line holds only `name=value;` pairs.
_BILLING_HEADER = re.compile(
    r"x-anthropic-billing-header:[ \t]*cc_version=[^;\s]*(?:;[ \t]*[\w-]+=[^;\s]*)*;?[ \t]*(?:\r?\n|\Z)"
)


class TurnConfig(Body):
    """Settings of one turn, in a system message."""

    effort: Effort | None = None


class MessageParam(Body):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(as_blocks, json_schema_input_type=str | list[Block])]
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: TurnConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _settings_alone(cls, value: Any) -> Any:
        """A system message may have settings and no text."""
        if isinstance(value, dict) and value.get("role") == "system" and value.get("output_config"):
            return {"content": [], **value}
        return value

    @model_validator(mode="after")
    def _blocks_of_the_role(self) -> Self:
        wrong = [block.type for block in self.content if not isinstance(block, ALLOWED[self.role])]
        if wrong:
            raise ValueError(f"no {wrong[0]} block in a message of the role {self.role}")
        if self.role != "system" and (self.clear_at is not None or self.output_config is not None):
            raise ValueError("clear_at and output_config in messages of the role system, and in no others")
        return self


def without_billing_header(system: Sequence[TextBlock]) -> list[TextBlock]:
    """Returns a system prompt without the billing line with which Claude Code begins it."""
    if not system or (header := _BILLING_HEADER.match(system[0].text)) is None:
        return list(system)
    rest = system[0].text[header.end() :]
    return [*([TextBlock(type="text", text=rest)] if rest else []), *system[1:]]


def turn_effort(messages: Sequence[MessageParam]) -> Effort | None:
    """Returns the effort that a system message has set for the turn to answer, if any."""
    effort: Effort | None = None
    for message in messages:
        if message.role == "assistant":
            effort = None
        elif message.output_config is not None:
            effort = message.output_config.effort or effort
    return effort


def template_messages(system: Sequence[TextBlock], messages: Sequence[MessageParam]) -> list[TemplateMessage]:
    """Returns the conversation for chat templates: roles alternate, and tool results are separate messages.

    Raises:
        ApiError: A result belongs to no call, or the last message calls a tool.
    """
    if messages[-1].role == "assistant" and any(isinstance(block, ToolUseBlock) for block in messages[-1].content):
        last = f"messages.{len(messages) - 1}"
        raise ApiError(400, f"{last}: got a tool_use block at the end, expected a tool_result after it", param=last)
    made: list[TemplateMessage] = []
    if system := without_billing_header(system):
        made.append({"role": "system", "content": _content([block.told() for block in system])})
    # The name of the tool for each call id.
    called: dict[str, str] = {}
    turn: list[Block] = []
    read: list[Piece] = []
    shown = _shown(messages)
    for place, (index, message) in enumerate(shown):
        if message.role == "user":
            results = enumerate(message.content)
            made += [_result(block, index, at, called) for at, block in results if isinstance(block, ToolResultBlock)]
        turn += message.content
        for at, block in enumerate(message.content):
            if isinstance(block, READ):
                read += pieces(block, f"messages.{index}.content.{at}")
        if place + 1 == len(shown) or shown[place + 1][1].role != message.role:
            made += _assistant_turn(turn) if message.role == "assistant" else _turn(message.role, turn, read)
            called |= {block.id: block.name for block in turn if isinstance(block, ToolUseBlock)}
            turn, read = [], []
    return in_turns(made)


def _shown(messages: Sequence[MessageParam]) -> list[tuple[int, MessageParam]]:
    """Yields the messages that the model reads, with their places: system messages may apply to one turn only."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    last_user = users[-1] if users else -1
    return [
        (index, message)
        for index, message in enumerate(messages)
        if (message.clear_at != "next_user_message" or index > last_user)
        and (message.content or message.role != "system")
    ]


def _turn(role: str, blocks: Sequence[Block], read: Sequence[Piece]) -> list[TemplateMessage]:
    """Returns consecutive messages of a role as one; none if they hold only tool results."""
    if not read and any(isinstance(block, ToolResultBlock) for block in blocks):
        return []
    return [{"role": role, "content": _content(read)}]


def _assistant_turn(blocks: Sequence[Block]) -> list[TemplateMessage]:
    """Returns the messages of an assistant's turn: one, unless it holds results of tools that another server ran."""
    made: list[TemplateMessage] = []
    part: list[Block] = []
    names: dict[str, str] = {}
    for block in blocks:
        if isinstance(block, ServerToolResultBlock):
            if part:
                made.append(_assistant(part))
                part = []
            text = block.told()
            made.append(
                {
                    "role": "tool",
                    "tool_call_id": block.tool_use_id,
                    "name": names.get(block.tool_use_id, block.type.removesuffix("_tool_result")),
                    "content": f"Error: {text}" if block.is_error else text,
                }
            )
            continue
        if isinstance(block, ServerToolUseBlock):
            names[block.id] = block.name
        part.append(block)
    return [*made, _assistant(part)] if part or not made else made


def _assistant(blocks: Sequence[Block]) -> TemplateMessage:
    message: TemplateMessage = {
        "role": "assistant",
        "content": _content([block.told() for block in blocks if isinstance(block, TextBlock)]),
    }
    if reasoning := [text for block in blocks if isinstance(block, ThinkingBlock) and (text := block.text())]:
        message["reasoning_content"] = "\n".join(reasoning)
    calls = [
        {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock | ServerToolUseBlock)
    ]
    return message | {"tool_calls": calls} if calls else message


def _result(block: ToolResultBlock, index: int, at: int, called: dict[str, str]) -> TemplateMessage:
    place = f"messages.{index}.content"
    if block.tool_use_id not in called:
        raise ApiError(
            400,
            f"{place}: got a tool_result for {block.tool_use_id!r}, expected the id of a tool_use block before it",
            param=place,
        )
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "name": called[block.tool_use_id],
        "content": block.told(f"{place}.{at}"),
    }


def _content(read: Sequence[Piece]) -> str | list[dict[str, Any]]:
    """Returns no text or a single one as a string, which every template takes."""
    if not read:
        return ""
    return read[0] if len(read) == 1 and isinstance(read[0], str) else [as_part(piece) for piece in read]
