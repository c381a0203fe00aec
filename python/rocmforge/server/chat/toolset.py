"""The tools of a request: as functions for the model, and back in the format of the client."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocmforge.outputs import CompletionOutput
from rocmforge.parsing import Event, ToolCallArguments, ToolCallStart
from rocmforge.parsing.grammars.inputs import InputGrammar
from rocmforge.server.answers.replies import FunctionTool, Reader, function_tool

INPUT = "input"
"""The argument of the function that a custom tool is for the model."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A tool as its client knows it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False
    """True if its input is a text, not an object."""


class ToolSet:
    """Collects tools. All are functions for the model; a tool of a namespace has its name as a prefix."""

    def __init__(self) -> None:
        self.functions: list[FunctionTool] = []
        self.strict: set[str] = set()
        self.inputs: dict[str, InputGrammar] = {}
        """The formats of custom tools' inputs, by the name that the model knows."""
        self.left_out: list[str] = []
        """The types of tools that the model does not see."""
        self._origins: dict[str, Origin] = {}

    @property
    def names(self) -> list[str]:
        """The names that the model knows."""
        return [tool["function"]["name"] for tool in self.functions]

    def add_function(
        self,
        origin: Origin,
        description: str | None,
        parameters: Mapping[str, Any] | None,
        *,
        strict: bool = False,
    ) -> None:
        """Adds a function."""
        name = self._new_name(origin)
        self.functions.append(function_tool(name, description, parameters))
        if strict:
            self.strict.add(name)

    def add_custom(self, origin: Origin, description: str | None, grammar: InputGrammar | None) -> None:
        """Adds a tool that takes a text: for the model, a function with that text as its only argument."""
        said = [description] if description else []
        if grammar is not None:
            syntax = "grammar in the syntax of Lark" if grammar.syntax == "lark" else "regular expression"
            said.append(f"The input has to fit this {syntax}:\n{grammar.definition}")
        name = self._new_name(origin)
        properties = {INPUT: {"type": "string", "description": "The input of the tool, as plain text."}}
        schema = {"type": "object", "properties": properties, "required": [INPUT]}
        self.functions.append(function_tool(name, "\n\n".join(said) or None, schema))
        if grammar is not None:
            self.inputs[name] = grammar

    def leave_out(self, kind: str) -> None:
        """Records a tool that nothing here can run."""
        if kind not in self.left_out:
            self.left_out.append(kind)

    def origin(self, name: str) -> Origin:
        """The tool that the model has called by a name."""
        return self._origins.get(name, Origin(name))

    def name_of(self, name: str, namespace: str | None = None) -> str:
        """The name by which the model knows a tool, also of one that is no longer among the tools."""
        for known, origin in self._origins.items():
            if (origin.name, origin.namespace) == (name, namespace):
                return known
        return flat_name(name, namespace)

    def find(self, name: str) -> str:
        """The name by which the model knows the tool that a client chooses, with or without its namespace."""
        if name in self._origins:
            return name
        found = [known for known, origin in self._origins.items() if origin.name == name]
        return found[0] if len(found) == 1 else name

    def reader(self, reader: Reader) -> "ClientReader":
        """A reader that gives the inputs of custom tools as texts."""
        return ClientReader(reader, self)

    def headers(self) -> dict[str, str]:
        """The header of an answer that lists the omitted tools."""
        return {"X-Left-Out-Tools": ", ".join(self.left_out)} if self.left_out else {}

    def _new_name(self, origin: Origin) -> str:
        name = flat_name(origin.name, origin.namespace)
        while self._origins.get(name, origin) != origin:
            name += "_"
        self._origins[name] = origin
        return name


def flat_name(name: str, namespace: str | None) -> str:
    """The name of a tool with its namespace's before it."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def input_arguments(text: str) -> dict[str, str]:
    """The arguments of a call of a custom tool."""
    return {INPUT: text}


def input_text(arguments: str) -> str:
    """Returns the input of a custom tool from the model's arguments; all of them if they have no input."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(value, dict) or not isinstance(text := value.get(INPUT), str):
        return arguments
    # An escape in JSON may spell half of a pair, which no text of an answer can hold.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class ClientReader:
    """Reads one sequence. The input of a custom tool comes in one piece, once the call has ended."""

    def __init__(self, reader: Reader, tools: ToolSet) -> None:
        self._reader = reader
        self._tools = tools
        self._custom: int | None = None
        self._arguments = ""

    @property
    def called(self) -> bool:
        """True if there was a call so far."""
        return self._reader.called

    def read(self, one: CompletionOutput) -> list[Event]:
        """Finds the events in the next output of the sequence."""
        made: list[Event] = []
        for event in self._reader.read(one):
            if isinstance(event, ToolCallArguments) and event.index == self._custom:
                self._arguments += event.text
                continue
            made += self._ended()
            if isinstance(event, ToolCallStart) and self._tools.origin(event.name).is_custom:
                self._custom, self._arguments = event.index, ""
            made.append(event)
        if one.finished():
            made += self._ended()
        return made

    def _ended(self) -> list[Event]:
        """The input of the call that was read last, if it is one of a custom tool."""
        if self._custom is None:
            return []
        index, self._custom = self._custom, None
        return [ToolCallArguments(index, input_text(self._arguments))]
