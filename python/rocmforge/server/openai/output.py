"""Output of the Responses API: items, and the events that tell of them while they are made."""

from collections.abc import Iterable, Iterator
from typing import Any

from rocmforge.parsing import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from rocmforge.server.openai.items import new_id
from rocmforge.server.sealed import sealed

Told = dict[str, Any]


def _begun(event: Event) -> dict[str, Any]:
    """The empty item that an event begins."""
    match event:
        case Reasoning():
            return {"type": "reasoning", "id": new_id("reasoning"), "summary": [], "content": []}
        case ToolCallStart(_, call_id, name):
            id_ = new_id("function_call")
            return {"type": "function_call", "id": id_, "call_id": call_id, "name": name, "arguments": ""}
    return {"type": "message", "id": new_id("message"), "role": "assistant", "content": []}


class OutputItems:
    """Gathers the items of an answer. What it yields is told to clients that read a stream.

    Args:
        seals_thoughts: Whether thoughts are told in the form to be sent back as well.
    """

    def __init__(self, *, seals_thoughts: bool = False) -> None:
        self._seals_thoughts = seals_thoughts
        self.items: list[dict[str, Any]] = []
        self._kind: str | None = None

    def add(self, events: Iterable[Event]) -> Iterator[Told]:
        """Takes the next events of the model's text."""
        for event in events:
            match event:
                case ToolCallStart():
                    yield from self._begin(event)
                case Content(text) | Reasoning(text):
                    if self._kind != ("message" if isinstance(event, Content) else "reasoning"):
                        yield from self._begin(event)
                        yield self._part("response.content_part.added")
                    self._item["content"][0]["text"] += text
                    yield self._delta(text)
                case ToolCallArguments(_, text):
                    self._item["arguments"] += text
                    yield self._delta(text)

    def finish(self, status: str) -> Iterator[Told]:
        """Ends the item that is open, with the status `completed` or `incomplete`."""
        if self._kind is None:
            return
        item = self._item
        if self._kind == "function_call":
            yield self._told("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        else:
            extra: Told = {"logprobs": []} if self._kind == "message" else {}
            text = item["content"][0]["text"]
            yield self._told(f"response.{self._text_kind}.done", content_index=0, text=text, **extra)
            yield self._part("response.content_part.done")
            if self._kind == "reasoning" and self._seals_thoughts:
                item["encrypted_content"] = sealed(text)
        item["status"] = status
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}
        self._kind = None

    @property
    def _item(self) -> dict[str, Any]:
        return self.items[-1]

    @property
    def _text_kind(self) -> str:
        return "output_text" if self._kind == "message" else "reasoning_text"

    def _begin(self, event: Event) -> Iterator[Told]:
        yield from self.finish("completed")
        item = _begun(event) | {"status": "in_progress"}
        self.items.append(item)
        self._kind = item["type"]
        # The client gets the item as it is now; it is filled later.
        told = item | {"content": []} if "content" in item else dict(item)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": told}
        if self._kind != "function_call":
            extra: Told = {"annotations": [], "logprobs": []} if self._kind == "message" else {}
            item["content"].append({"type": self._text_kind, "text": "", **extra})

    def _delta(self, text: str) -> Told:
        if self._kind == "function_call":
            return self._told("response.function_call_arguments.delta", delta=text)
        extra: Told = {"logprobs": []} if self._kind == "message" else {}
        return self._told(f"response.{self._text_kind}.delta", content_index=0, delta=text, **extra)

    def _part(self, kind: str) -> Told:
        return self._told(kind, content_index=0, part=dict(self._item["content"][0]))

    def _told(self, kind: str, **values: Any) -> Told:
        return {"type": kind, "item_id": self._item["id"], "output_index": len(self.items) - 1, **values}
