"""Output of the Responses API: items, and the events of their stream."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rocmforge.parsing import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from rocmforge.server.answers.sealed import sealed
from rocmforge.server.chat.toolset import ToolSet
from rocmforge.server.openai.logprobs import AnswerLogprobs
from rocmforge.server.openai.responses.items import new_id

Told = dict[str, Any]


_ARGUMENT = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field with the arguments or the input of a call, by the type of the item."""
_ARGUMENT_EVENT = {
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}


def _begun(event: Event, tools: ToolSet) -> dict[str, Any]:
    """The empty item that an event begins."""
    match event:
        case Reasoning():
            return {"type": "reasoning", "id": new_id("reasoning"), "summary": [], "content": []}
        case ToolCallStart(_, call_id, name):
            origin = tools.origin(name)
            kind = "custom_tool_call" if origin.is_custom else "function_call"
            item = {"type": kind, "id": new_id(kind), "call_id": call_id, "name": origin.name, _ARGUMENT[kind]: ""}
            return item if origin.namespace is None else item | {"namespace": origin.namespace}
    return {"type": "message", "id": new_id("message"), "role": "assistant", "content": []}


class OutputItems:
    """Gathers the items of an answer, and yields the events of its stream.

    Args:
        tools: The tools as the client knows them.
        seals_reasoning: True if reasoning also comes as an opaque text to send back.
        logprobs: The log-probabilities of the answer's tokens, if they are reported.
    """

    def __init__(
        self, tools: ToolSet, *, seals_reasoning: bool = False, logprobs: AnswerLogprobs | None = None
    ) -> None:
        self._tools = tools
        self._seals_reasoning = seals_reasoning
        self._logprobs = logprobs
        self.items: list[dict[str, Any]] = []
        self._kind: str | None = None

    def add(self, events: Iterable[Event]) -> Iterator[Told]:
        """Adds the next events of the model's text."""
        for event in events:
            match event:
                case ToolCallStart():
                    yield from self._begin(event)
                case Content(text) | Reasoning(text):
                    if self._kind != ("message" if isinstance(event, Content) else "reasoning"):
                        yield from self._begin(event)
                        yield self._part("response.content_part.added")
                    self._item["content"][0]["text"] += text
                    logprobs = [] if self._logprobs is None else self._logprobs.take(event)
                    if self._kind == "message":
                        self._item["content"][0]["logprobs"] += logprobs
                    yield self._delta(text, logprobs)
                case ToolCallArguments(_, text):
                    self._item[_ARGUMENT[self._item["type"]]] += text
                    if self._logprobs is not None:
                        self._logprobs.take(event)
                    yield self._delta(text)

    def finish(self, status: str) -> Iterator[Told]:
        """Ends the open item, with the status `completed` or `incomplete`."""
        if self._kind is None:
            return
        item = self._item
        if self._kind in _ARGUMENT:
            name: Told = {"name": item["name"]} if self._kind == "function_call" else {}
            argument = _ARGUMENT[self._kind]
            yield self._told(f"{_ARGUMENT_EVENT[self._kind]}.done", **{argument: item[argument]}, **name)
        else:
            text = item["content"][0]["text"]
            extra: Told = {"logprobs": item["content"][0]["logprobs"]} if self._kind == "message" else {}
            yield self._told(f"response.{self._text_kind}.done", content_index=0, text=text, **extra)
            yield self._part("response.content_part.done")
            if self._kind == "reasoning" and self._seals_reasoning:
                item["encrypted_content"] = sealed(text)
        item["status"] = status
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}
        self._kind = None

    def replay(self, item: dict[str, Any]) -> Iterator[Told]:
        """Yields the events of a finished item."""
        self._kind = item["type"]
        self.items.append(item)
        empty = item | {"status": "in_progress"}
        if self._kind in _ARGUMENT:
            empty[_ARGUMENT[self._kind]] = ""
        else:
            empty["content"] = []
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": empty}
        if self._kind in _ARGUMENT:
            yield self._delta(item[_ARGUMENT[self._kind]])
        else:
            (part,) = item["content"]
            empty = {key: [] if key == "logprobs" else "" for key in ("text", "logprobs") if key in part}
            yield self._told("response.content_part.added", content_index=0, part=part | empty)
            yield self._delta(part["text"], part.get("logprobs", ()))
        yield from self.finish(item["status"])

    @property
    def _item(self) -> dict[str, Any]:
        return self.items[-1]

    @property
    def _text_kind(self) -> str:
        return "output_text" if self._kind == "message" else "reasoning_text"

    def _begin(self, event: Event) -> Iterator[Told]:
        yield from self.finish("completed")
        item = _begun(event, self._tools) | {"status": "in_progress"}
        self.items.append(item)
        self._kind = item["type"]
        # The client gets the item as it is now; it is filled later.
        told = item | {"content": []} if "content" in item else dict(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": told}
        if self._kind not in _ARGUMENT:
            extra: Told = {"annotations": [], "logprobs": []} if self._kind == "message" else {}
            item["content"].append({"type": self._text_kind, "text": "", **extra})

    def _delta(self, text: str, logprobs: Sequence[Told] = ()) -> Told:
        if self._kind in _ARGUMENT:
            return self._told(f"{_ARGUMENT_EVENT[self._kind]}.delta", delta=text)
        extra: Told = {"logprobs": logprobs} if self._kind == "message" else {}
        return self._told(f"response.{self._text_kind}.delta", content_index=0, delta=text, **extra)

    def _part(self, kind: str) -> Told:
        return self._told(kind, content_index=0, part=dict(self._item["content"][0]))

    def _told(self, kind: str, **values: Any) -> Told:
        return {"type": kind, "item_id": self._item["id"], "output_index": len(self.items) - 1, **values}
