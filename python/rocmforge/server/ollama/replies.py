"""Replies in Ollama's format: reasoning and answer as they come, calls when they are complete."""

import json
from collections.abc import Sequence
from typing import Any

from rocmforge.parsing import Content, Event, Reasoning, ToolCallArguments, ToolCallStart


class OllamaReply:
    """Turns the events of one reply into fields of Ollama's messages."""

    def __init__(self) -> None:
        self._id = self._name = self._arguments = ""

    def add(self, events: Sequence[Event], *, ended: bool) -> tuple[str, dict[str, Any]]:
        """Adds the next events.

        Returns:
            The next piece of the answer, and the fields `thinking` and `tool_calls` if there are any.
        """
        content = thinking = ""
        calls: list[dict[str, Any]] = []
        for event in events:
            match event:
                case Content(text):
                    content += text
                case Reasoning(text):
                    thinking += text
                case ToolCallStart(_, id_, name):
                    calls += self._whole()
                    self._id, self._name = id_, name
                case ToolCallArguments(_, text):
                    self._arguments += text
        if ended:
            calls += self._whole()
        others: dict[str, Any] = {"thinking": thinking} if thinking else {}
        return content, others | {"tool_calls": calls} if calls else others

    def _whole(self) -> list[dict[str, Any]]:
        """Returns the call that has ended, if any. A call that was cut off is dropped."""
        id_, name, text = self._id, self._name, self._arguments or "{}"
        self._id = self._name = self._arguments = ""
        try:
            arguments = json.loads(text)
        except ValueError:
            return []
        return [{"id": id_, "function": {"name": name, "arguments": arguments}}] if name else []
