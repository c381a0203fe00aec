"""`tool_choice` of chats and of responses: the tools that an answer may call or must call."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Discriminator, Field, Tag

from rocmforge.server.bodies import Body, Text
from rocmforge.server.chat.rules import ReplyRules, ToolMode, forced_call
from rocmforge.server.chat.toolset import ToolSet
from rocmforge.server.errors import ApiError


class FunctionName(Body):
    """The name of a function."""

    name: Text


class NamedTool(Body):
    """A tool of a chat."""

    type: Literal["function"]
    function: FunctionName


class NamedCustomTool(Body):
    """A custom tool of a chat."""

    type: Literal["custom"]
    custom: FunctionName


class AllowedTools(Body):
    """Some of the tools of a chat."""

    mode: Literal["auto", "required"] = Field(description="`required` forces a call of one of them.")
    tools: list[Annotated[NamedTool | NamedCustomTool, Field(discriminator="type")]] = Field(min_length=1)


class AllowedToolChoice(Body):
    """The tools that a chat may call; all tools stay in its prompt."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class NamedFunction(Body):
    """A function or a custom tool of a response."""

    type: Literal["function", "custom"]
    name: Text


class AllowedFunctions(Body):
    """The functions that a response may call; all functions stay in its prompt."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = Field(description="`required` forces a call of one of them.")
    tools: list[NamedFunction] = Field(min_length=1)


def _kind(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get("type")
    return "mode" if value in get_args(ToolMode) else getattr(value, "type", None)


_BY_KIND = Discriminator(
    _kind,
    custom_error_type="tool_choice",
    custom_error_message="'auto', 'none', 'required', or an object of the type function, custom or allowed_tools",
)
_Mode = Annotated[ToolMode, Tag("mode")]

ChatToolChoice = Annotated[
    _Mode
    | Annotated[NamedTool, Tag("function")]
    | Annotated[NamedCustomTool, Tag("custom")]
    | Annotated[AllowedToolChoice, Tag("allowed_tools")],
    _BY_KIND,
]
ResponseToolChoice = Annotated[
    _Mode
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[NamedFunction, Tag("custom")]
    | Annotated[AllowedFunctions, Tag("allowed_tools")],
    _BY_KIND,
]


def chosen(choice: ChatToolChoice | ResponseToolChoice, tools: ToolSet) -> tuple[str, frozenset[str] | None]:
    """Returns the mode or the tool that must be called, and the allowed tools, `None` for all.

    Args:
        choice: The client's choice.
        tools: The tools of the request.

    Raises:
        ApiError: An allowed tool is not among the tools.
    """
    match choice:
        case AllowedToolChoice(allowed_tools=some):
            return some.mode, _allowed([_name(tool) for tool in some.tools], tools)
        case AllowedFunctions(mode=mode, tools=named):
            return mode, _allowed([tool.name for tool in named], tools)
        case NamedTool() | NamedCustomTool() | NamedFunction():
            return tools.find(_name(choice)), None
        case mode:
            return mode, None


def tool_rules(choice: str, allowed: frozenset[str] | None, tools: ToolSet) -> ReplyRules:
    """Returns the rules of a reply that follow from its tools alone.

    Args:
        choice: The mode, or the tool that must be called.
        allowed: The tools that may be called; `None` for all.
        tools: The tools of the request.

    Raises:
        ApiError: There is no tool to call.
    """
    offered = tools if choice != "none" else ToolSet()
    return ReplyRules(
        tools=offered.functions,
        forced=forced_call(choice, offered.names),
        allowed=allowed,
        strict=frozenset(offered.strict),
        inputs=offered.inputs,
    )


def _name(tool: NamedTool | NamedCustomTool | NamedFunction) -> str:
    match tool:
        case NamedTool(function=named) | NamedCustomTool(custom=named):
            return named.name
    return tool.name


def _allowed(allowed: Sequence[str], tools: ToolSet) -> frozenset[str]:
    names = [tools.find(name) for name in allowed]
    for name in names:
        if name not in tools.names:
            expected = f"tools among {', '.join(tools.names)}" if tools.names else "tools beside it"
            raise ApiError(400, f"tool_choice: got the tool {name!r}, expected {expected}", param="tool_choice")
    return frozenset(names)
