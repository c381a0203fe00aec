"""Content of an answer in Anthropic's format: blocks of text, reasoning and calls, in the order of the reply."""

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from rocmforge.parsing import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from rocmforge.server.answers.sealed import sealed

Block = dict[str, Any]


def _begun(event: Event) -> Block:
    """Returns the empty block that an event begins."""
    match event:
        case Reasoning():
            # Shown reasoning needs no signature here, but clients expect the field.
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCallStart(_, id_, name):
            return {"type": "tool_use", "id": id_, "name": name, "input": {}}
    return {"type": "text", "text": ""}


def _delta(event: Event) -> Block | None:
    """Returns the part of a block that an event adds."""
    match event:
        case Content(text):
            return {"type": "text_delta", "text": text}
        case Reasoning(text):
            return {"type": "thinking_delta", "thinking": text}
        case ToolCallArguments(_, text):
            return {"type": "input_json_delta", "partial_json": text}
    return None


class BlockStream:
    """Makes the events of a stream's blocks.

    Args:
        shows_reasoning: True if reasoning is shown; otherwise the signature of its block contains it.
    """

    def __init__(self, *, shows_reasoning: bool = True) -> None:
        self._index = -1
        self._open: str | None = None
        self._shows_reasoning = shows_reasoning
        self._hidden = ""

    def add(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Yields the stream events for new parser events."""
        for event in events:
            block = _begun(event)
            if isinstance(event, ToolCallStart) or (
                not isinstance(event, ToolCallArguments) and block["type"] != self._open
            ):
                yield from self.finish()
                self._index += 1
                self._open = block["type"]
                yield {"type": "content_block_start", "index": self._index, "content_block": block}
            if isinstance(event, Reasoning) and not self._shows_reasoning:
                self._hidden += event.text
            elif (delta := _delta(event)) is not None:
                yield {"type": "content_block_delta", "index": self._index, "delta": delta}

    def finish(self) -> Iterator[dict[str, Any]]:
        """Yields the end of the open block."""
        if self._open is not None:
            self._open = None
            if self._hidden:
                signed = {"type": "signature_delta", "signature": sealed(self._hidden)}
                self._hidden = ""
                yield {"type": "content_block_delta", "index": self._index, "delta": signed}
            yield {"type": "content_block_stop", "index": self._index}


def whole_blocks(events: Iterable[Event], *, shows_reasoning: bool = True) -> list[Block]:
    """Returns the blocks of an answer that is not streamed. A call that was cut off has an empty input."""
    blocks: list[Block] = []
    arguments = ""
    stream = BlockStream(shows_reasoning=shows_reasoning)
    for new in itertools.chain(stream.add(events), stream.finish()):
        if new["type"] == "content_block_start":
            blocks.append(new["content_block"])
            arguments = ""
        elif new["type"] == "content_block_delta":
            delta = new["delta"]
            match delta["type"]:
                case "text_delta":
                    blocks[-1]["text"] += delta["text"]
                case "thinking_delta":
                    blocks[-1]["thinking"] += delta["thinking"]
                case "signature_delta":
                    blocks[-1]["signature"] = delta["signature"]
                case "input_json_delta":
                    arguments += delta["partial_json"]
                    blocks[-1]["input"] = _object(arguments)
    return blocks


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
