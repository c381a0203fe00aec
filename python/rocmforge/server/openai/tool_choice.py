"""Which tools an answer may call, and whether it has to: `tool_choice` of chats and of responses."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag

from rocmforge.server.bodies import Body, Text
from rocmforge.server.errors import ApiError
from rocmforge.server.rules import ToolMode


class FunctionName(Body):
    """The name of a function."""

    name: Text


class NamedTool(Body):
    """A tool of a chat."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Body):
    """Some of the tools of a chat."""

    mode: Literal["auto", "required"] = Field(description="Whether one of them has to be called.")
    tools: list[NamedTool] = Field(min_length=1)


class AllowedToolChoice(Body):
    """The tools that a chat may call; all tools stay in its prompt."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class NamedFunction(Body):
    """A function of a response."""

    type: Literal["function"]
    name: Text


class AllowedFunctions(Body):
    """The functions that a response may call; all functions stay in its prompt."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = Field(description="Whether one of them has to be called.")
    tools: list[NamedFunction] = Field(min_length=1)


def _kind(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get("type")
    return "mode" if value in get_args(ToolMode) else getattr(value, "type", None)


_BY_KIND = Discriminator(
    _kind,
    custom_error_type="tool_choice",
    custom_error_message="'auto', 'none', 'required', or an object of the type function or allowed_tools",
)
_Mode = Annotated[ToolMode, Tag("mode")]

ChatToolChoice = Annotated[
    _Mode | Annotated[NamedTool, Tag("function")] | Annotated[AllowedToolChoice, Tag("allowed_tools")], _BY_KIND
]
ResponseToolChoice = Annotated[
    _Mode | Annotated[NamedFunction, Tag("function")] | Annotated[AllowedFunctions, Tag("allowed_tools")], _BY_KIND
]


def chosen(choice: ChatToolChoice | ResponseToolChoice) -> tuple[str, list[str] | None]:
    """The mode, or the name of the tool that has to be called; and the names of those that may be, `None` for all."""
    match choice:
        case NamedTool(function=function):
            return function.name, None
        case NamedFunction(name=name):
            return name, None
        case AllowedToolChoice(allowed_tools=some):
            return some.mode, [tool.function.name for tool in some.tools]
        case AllowedFunctions(mode=mode, tools=tools):
            return mode, [tool.name for tool in tools]
        case mode:
            return mode, None


def allowed_calls(allowed: Sequence[str] | None, names: Sequence[str]) -> frozenset[str] | None:
    """The value of `ReplyRules.allowed` for the names of the tools that may be called.

    Args:
        allowed: These names; `None` for all tools.
        names: The names of all tools.

    Raises:
        ApiError: A tool that may be called is none of the tools.
    """
    for name in allowed or ():
        if name not in names:
            expected = f"tools among {', '.join(names)}" if names else "tools beside it"
            raise ApiError(400, f"tool_choice: got the tool {name!r}, expected {expected}", param="tool_choice")
    return None if allowed is None else frozenset(allowed)
