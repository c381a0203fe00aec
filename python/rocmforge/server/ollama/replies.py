"""Replies in Ollama's form: thoughts and answer as they come, calls when they are whole."""

import json
from collections.abc import Sequence
from typing import Any

from rocmforge.parsing import Content, Event, Reasoning, ToolCallArguments, ToolCallStart


class OllamaReply:
    """Makes the fields of Ollama's messages of the events of one reply."""

    def __init__(self) -> None:
        self._name = ""
        self._arguments = ""

    def add(self, events: Sequence[Event], *, ended: bool) -> tuple[str, dict[str, Any]]:
        """Takes the next events.

        Returns:
            The answer's next piece, and the other fields: `thinking` and `tool_calls`, where there are some.
        """
        content = thinking = ""
        calls: list[dict[str, Any]] = []
        for event in events:
            match event:
                case Content(text):
                    content += text
                case Reasoning(text):
                    thinking += text
                case ToolCallStart(_, _, name):
                    calls += self._whole()
                    self._name = name
                case ToolCallArguments(_, text):
                    self._arguments += text
        if ended:
            calls += self._whole()
        others: dict[str, Any] = {"thinking": thinking} if thinking else {}
        return content, others | {"tool_calls": calls} if calls else others

    def _whole(self) -> list[dict[str, Any]]:
        """The call that has ended, if there was one; one that was cut off is none."""
        name, text = self._name, self._arguments or "{}"
        self._name = self._arguments = ""
        try:
            arguments = json.loads(text)
        except ValueError:
            return []
        return [{"function": {"name": name, "arguments": arguments}}] if name else []
