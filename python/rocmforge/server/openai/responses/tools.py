"""Tools of OpenAI's Responses API: functions, custom tools, namespaces of both, and those that only OpenAI runs."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Tag

from rocmforge.parsing.grammars.inputs import InputGrammar
from rocmforge.server.bodies import Body, JsonObject, Text
from rocmforge.server.chat.toolset import Origin, ToolSet
from rocmforge.server.ignored import CACHED, SHOWN

_SHOWN = {"allowed_callers": SHOWN, "async": SHOWN, "defer_loading": SHOWN, "cache_control": CACHED}


class FunctionTools(Body):
    """A function that the client runs."""

    ignored: ClassVar[Mapping[str, str]] = _SHOWN | {"output_schema": "Chat templates have no place for it."}

    type: Literal["function"]
    name: Text = Field(min_length=1)
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = Field(None, description="If true, arguments must match the schema.")


class ToolFormat(Body):
    """The format of a custom tool's input."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Text | None = None


class CustomTools(Body):
    """A tool that the client runs and that takes a text."""

    ignored: ClassVar[Mapping[str, str]] = _SHOWN

    type: Literal["custom"]
    name: Text = Field(min_length=1)
    description: Text | None = None
    format: ToolFormat | None = None


class NamespaceTools(Body):
    """Tools under one name, like those of an MCP server."""

    type: Literal["namespace"]
    name: Text = Field(min_length=1)
    description: Text | None = None
    tools: list[Annotated[FunctionTools | CustomTools, Field(discriminator="type")]]


HostedKind = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]


class HostedTools(Body):
    """A tool that only OpenAI runs. It is left out, and a header of the answer names it."""

    model_config = Body.model_config | {"extra": "allow"}

    type: HostedKind


def _kind(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "hosted" if kind in get_args(HostedKind) else kind


AnyTools = Annotated[
    Annotated[FunctionTools, Tag("function")]
    | Annotated[CustomTools, Tag("custom")]
    | Annotated[NamespaceTools, Tag("namespace")]
    | Annotated[HostedTools, Tag("hosted")],
    Discriminator(
        _kind,
        custom_error_type="tool",
        custom_error_message=f"a tool of the type function, custom or namespace, or of one of OpenAI's own "
        f"({', '.join(get_args(HostedKind))}), which are left out",
    ),
]


def toolset(tools: Iterable[FunctionTools | CustomTools | NamespaceTools | HostedTools]) -> ToolSet:
    """Returns the tools as the model sees them."""
    made = ToolSet()
    for tool in tools:
        match tool:
            case HostedTools():
                made.leave_out(tool.type)
            case NamespaceTools():
                # The description of the namespace comes before that of its first tool.
                about = f"{tool.name}: {tool.description}\n\n" if tool.description else ""
                for index, each in enumerate(tool.tools):
                    _add(made, each, tool.name, "" if index else about)
            case _:
                _add(made, tool, None, "")
    return made


def _add(made: ToolSet, tool: FunctionTools | CustomTools, namespace: str | None, about: str) -> None:
    description = about + (tool.description or "")
    if isinstance(tool, FunctionTools):
        given = description if about or tool.description is not None else None
        origin = Origin(tool.name, namespace)
        made.add_function(origin, given, tool.parameters, strict=bool(tool.strict))
        return
    custom_format = tool.format
    grammar = None
    if custom_format is not None and custom_format.type == "grammar":
        grammar = InputGrammar(custom_format.syntax or "lark", custom_format.definition or "")
    made.add_custom(Origin(tool.name, namespace, is_custom=True), description or None, grammar)
