"""Tools in Anthropic's format: those that clients define, and those whose schema Anthropic fixes."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from rocmforge.server.answers.replies import FunctionTool, function_tool
from rocmforge.server.anthropic.blocks import CACHED
from rocmforge.server.bodies import Body, JsonObject

_IN_PROMPT = {
    "allowed_callers": "The model calls a tool itself; no code does.",
    "defer_loading": "All tools are in the prompt from the start.",
    "input_examples": "Chat templates have no place for them.",
    "eager_input_streaming": "Arguments are always streamed.",
}


class Tool(Body):
    """A tool that the client defines and runs."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | _IN_PROMPT
    type: Literal["custom"] = "custom"
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = Field(None, description="If true, arguments must match the schema.")

    def described(self) -> FunctionTool:
        """Returns the tool as the chat template takes it."""
        return function_tool(self.name, self.description, self.input_schema)


def _object(required: Sequence[str], **properties: Any) -> JsonObject:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _text(description: str) -> JsonObject:
    return {"type": "string", "description": description}


def _one_of(*values: str) -> JsonObject:
    return {"type": "string", "enum": list(values)}


def _numbers(description: str, count: int) -> JsonObject:
    kind = {"type": "integer"}
    return {"type": "array", "items": kind, "minItems": count, "maxItems": count, "description": description}


_BASH = _object(
    [],
    command=_text("The command to run; needed unless the shell is restarted."),
    restart={"type": "boolean", "description": "True to start the shell anew."},
)
_FILE = {
    "path": _text("The path of the file or folder."),
    "file_text": _text("For create: the content of the new file."),
    "old_str": _text("For str_replace: the text to replace, which the file has once."),
    "new_str": _text("For str_replace: the text in its place."),
    "insert_line": {
        "type": "integer",
        "description": "For insert: the line after which the text goes; 0 is the start.",
    },
    "insert_text": _text("For insert: the text to insert."),
    "view_range": _numbers("For view: the first and the last line; -1 is the end of the file.", 2),
}
_EDITS = ("view", "create", "str_replace", "insert")
_MEMORY = _object(
    ["command"],
    command=_one_of(*_EDITS, "delete", "rename"),
    old_path=_text("For rename: the path that is."),
    new_path=_text("For rename: the path that is to be."),
    **_FILE,
)
_ACTIONS = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "screenshot"),
    *("double_click", "cursor_position", "triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key"),
    *("wait", "zoom"),
)
_COMPUTER = _object(
    ["action"],
    action=_one_of(*_ACTIONS),
    coordinate=_numbers("The place x, y on the screen, in pixels.", 2),
    start_coordinate=_numbers("For left_click_drag: where it begins.", 2),
    text=_text("For type and key: what is typed or pressed; for clicks and scroll: keys that are held."),
    scroll_direction=_one_of("up", "down", "left", "right"),
    scroll_amount={"type": "integer", "description": "For scroll: the number of clicks of the wheel."},
    duration={"type": "number", "description": "For hold_key and wait: seconds."},
    region=_numbers("For zoom: the corners x0, y0, x1, y1 of the part of the screen.", 4),
)
# The tools that clients run, each with a description and Anthropic's fixed schema.
_KNOWN = {
    "bash": ("Runs a command in a shell that stays open.", _BASH),
    "text_editor": (
        "Shows and edits text files.",
        _object(["command", "path"], command=_one_of(*_EDITS, "undo_edit"), **_FILE),
    ),
    "memory": ("Keeps notes in files under /memories, which last from one conversation to the next.", _MEMORY),
    "computer": ("Uses the screen, the mouse and the keyboard of a computer.", _COMPUTER),
}


class ClientTool(Body):
    """A tool that the client runs, with a schema that Anthropic fixes."""

    ignored: ClassVar[Mapping[str, str]] = (
        CACHED
        | _IN_PROMPT
        | {
            "max_characters": "The client cuts its own results.",
            "display_number": "It concerns only the client.",
            "enable_zoom": "It concerns only the client.",
        }
    )
    type: Annotated[str, Field(pattern=r"^(bash|text_editor|memory|computer)_\d{8}$")]
    name: str = Field(min_length=1)
    strict: bool | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None

    def described(self) -> FunctionTool:
        """Returns the tool as a function, as the chat template takes it."""
        description, schema = _KNOWN[self.type.rpartition("_")[0]]
        if self.display_width_px is not None and self.display_height_px is not None:
            description += f" The screen has {self.display_width_px} x {self.display_height_px} pixels."
        return function_tool(self.name, description, schema)


# Tools that Anthropic's server runs, and toolsets that answer with images.
_SERVER = re.compile(
    r"(web_search|web_fetch|code_execution|advisor|tool_search_tool_bm25|tool_search_tool_regex|mcp_toolset"
    r"|browser_toolset|computer_toolset)(_\d{8})?"
)


class ServerTool(Body):
    """A tool that this server cannot run, or that answers only with images. It is left out."""

    type: str
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _what_names_it(cls, value: Any) -> Any:
        return (
            {name: each for name, each in value.items() if name in cls.model_fields}
            if isinstance(value, dict)
            else value
        )

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not _SERVER.fullmatch(self.type):
            raise ValueError("a tool of the type custom, or a type of Anthropic's API")
        return self


def _kind(value: Any) -> str:
    type_ = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if type_ in (None, "custom"):
        return "custom"
    return "client" if isinstance(type_, str) and type_.rpartition("_")[0] in _KNOWN else "server"


AnyTool = Annotated[
    Annotated[Tool, Tag("custom")] | Annotated[ClientTool, Tag("client")] | Annotated[ServerTool, Tag("server")],
    Discriminator(_kind),
]


def callable_tools(tools: Sequence[AnyTool]) -> list[Tool | ClientTool]:
    """Returns the tools that the model can call."""
    return [tool for tool in tools if not isinstance(tool, ServerTool)]


def left_out(tools: Sequence[AnyTool]) -> dict[str, str]:
    """Returns the answer's header that names the tools left out."""
    types = dict.fromkeys(tool.type for tool in tools if isinstance(tool, ServerTool))
    return {"X-Left-Out-Tools": ", ".join(types)} if types else {}


class ToolChoice(Body):
    """How tools may be called: as the model decides, never, any, or a named one."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = Field(default=False, description="If true, allows at most one call.")

    @model_validator(mode="after")
    def _name_of_the_tool(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name with the type tool, and with no other")
        return self
