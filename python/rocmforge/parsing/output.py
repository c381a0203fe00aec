"""The events that a reader has found, with white space where it belongs.

White space around a tool call or a thinking block is part of its form: templates write it. So the answer begins and
ends without the space that lies between it and a block, and reasoning begins and ends without any. Space between two
parts of the answer is kept.
"""

from collections.abc import Callable

from rocmforge.parsing.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from rocmforge.parsing.source import SPACE


class Output:
    """Events of one sequence. Pieces of one kind that come together become one event."""

    __slots__ = (
        "_blocks",
        "_calls",
        "_events",
        "_fresh",
        "_kind",
        "_new_id",
        "_parts",
        "_reasoned",
        "_reasoning_space",
        "_space",
        "between",
        "said",
    )  # fmt: skip

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._events: list[Event] = []
        # Pieces that are one event when another kind comes, or when the events are taken.
        self._kind: type[Content | Reasoning | ToolCallArguments] = Content
        self._parts: list[str] = []
        self._calls = 0
        self._blocks = False
        self.said = False
        """True if there was an answer so far."""
        self.between = True
        """True if no answer has come since the last block, or since the beginning."""
        # Space that may be followed by more of the same part, in the pieces in which it came.
        self._space: list[str] = []
        self._reasoned = False
        self._fresh = True
        self._reasoning_space: list[str] = []

    def content(self, text: str) -> None:
        """Adds to the answer."""
        if solid := _solid(self._space, text):
            if self._blocks and not self.said:
                solid = solid.lstrip(SPACE)
            self.said, self.between = True, False
            self._add(Content, solid)

    def border(self) -> None:
        """Begins or ends an answer that has markers."""
        self._blocks = self.between = True

    def begin_reasoning(self) -> None:
        """Begins a thinking block."""
        self._blocks = self.between = self._fresh = True
        self._reasoning_space.clear()

    def reasoning(self, text: str) -> None:
        """Adds to the thinking block."""
        if solid := _solid(self._reasoning_space, text):
            if self._fresh:
                solid = solid.lstrip(SPACE)
            # Thinking blocks are told apart by a line break.
            self._add(Reasoning, f"\n{solid}" if self._fresh and self._reasoned else solid)
            self._fresh, self._reasoned = False, True

    def start_call(self, name: str, given_id: str | None = None) -> None:
        """Begins a tool call, and ends a thinking block if there is one."""
        self._blocks = self.between = True
        self._flush()
        self._events.append(ToolCallStart(self._calls, given_id or self._new_id(), name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """Adds to the arguments of the last call."""
        self._add(ToolCallArguments, text)

    def finish(self) -> None:
        """Gives the space at the end of an answer that no block follows."""
        if self._space and (not self.between or not self._blocks):
            self._add(Content, "".join(self._space))
        self._space.clear()

    def take(self) -> list[Event]:
        """Returns the events since the last time."""
        if self._parts:
            self._flush()
        events, self._events = self._events, []
        return events

    def _add(self, kind: type[Content | Reasoning | ToolCallArguments], text: str) -> None:
        if kind is not self._kind:
            self._flush()
            self._kind = kind
        self._parts.append(text)

    def _flush(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        self._parts.clear()
        if self._kind is ToolCallArguments:
            self._events.append(ToolCallArguments(self._calls - 1, text))
        elif self._kind is Reasoning:
            self._events.append(Reasoning(text))
        else:
            self._events.append(Content(text))


def _solid(space: list[str], text: str) -> str:
    """Returns a text with the space that came before it, and without that at its end, which becomes `space`."""
    solid = text.rstrip(SPACE)
    after = text[len(solid) :]
    if solid:
        solid = "".join(space) + solid
        space.clear()
    if after:
        space.append(after)
    return solid
