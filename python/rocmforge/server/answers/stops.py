"""Stop strings of replies with reasoning or calls: they match only in the answer.

A stop string such as a line break also occurs in reasoning and calls, where it has no meaning for the client.
So the engine does not match it: the parser of the reply does, and ends the request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rocmforge.outputs import CompletionOutput, RequestOutput, extend
from rocmforge.parsing import Content, Event

if TYPE_CHECKING:
    from rocmforge.server.answers.replies import Reader


@dataclass(slots=True)
class AnswerStops:
    """The stop strings of one request, and the parsers of its sequences."""

    texts: Sequence[str]
    included: bool
    """True if the stop string is part of the answer."""
    min_tokens: int
    """The fewest tokens of a sequence before a stop string may end it."""
    reader: "Callable[[], Reader]"
    """Makes a parser of a sequence."""
    readers: "list[Reader]" = field(default_factory=list)

    @property
    def over(self) -> bool:
        """True if all sequences have ended for their parsers, so that the request can end."""
        return bool(self.readers) and all(reader.ended for reader in self.readers)


class StopFinder:
    """Looks for stop strings in the answer of one sequence."""

    def __init__(self, stops: AnswerStops) -> None:
        self._stops = stops
        self._longest = max(map(len, stops.texts))
        # The end of the answer, which may be the beginning of a stop string.
        self._held = ""
        self._num_tokens = 0

    def find(self, events: Sequence[Event], one: CompletionOutput) -> tuple[list[Event], str | None]:
        """Takes the next events; returns those up to a stop string, and the string if there was one."""
        self._num_tokens += len(one.token_ids)
        kept: list[Event] = []
        for event in events:
            if not isinstance(event, Content):
                # A stop string does not continue across a part of another kind.
                kept += self._flushed()
                kept.append(event)
                continue
            text, self._held = self._held + event.text, ""
            if self._num_tokens >= self._stops.min_tokens and (found := self._first(text)) is not None:
                end, stop = found
                text = text[: end if self._stops.included else end - len(stop)]
                return [*kept, *([Content(text)] if text else [])], stop
            begun = self._begun(text)
            self._held = text[len(text) - begun :]
            if begun < len(text):
                kept.append(Content(text[: len(text) - begun]))
        return [*kept, *(self._flushed() if one.finished() else [])], None

    def _flushed(self) -> list[Event]:
        text, self._held = self._held, ""
        return [Content(text)] if text else []

    def _first(self, text: str) -> tuple[int, str] | None:
        """Returns the end of the first complete stop string, and the string."""
        ends = [(place + len(stop), stop) for stop in self._stops.texts if (place := text.find(stop)) >= 0]
        return min(ends, key=lambda found: found[0], default=None)

    def _begun(self, text: str) -> int:
        """Returns the length of the longest suffix of a text that may begin a stop string."""
        most = min(len(text), self._longest - 1)
        return next((n for n in range(most, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops.texts)), 0)


class WholeReply:
    """Gathers the pieces of a reply that is not streamed, up to its stop strings."""

    def __init__(self, stops: AnswerStops, first: RequestOutput) -> None:
        self._make = stops.reader
        self._readers: dict[int, Reader] = {}
        self.output = first
        self._whole = {one.index: one for one in first.outputs}
        for one in first.outputs:
            self._ends(one)

    def add(self, output: RequestOutput) -> None:
        """Adds the next pieces."""
        for one in output.outputs:
            reader = self._readers.get(one.index)
            if reader is not None and reader.ended:
                continue
            if one.index in self._whole:
                extend(self._whole[one.index], one)
            else:
                self._whole[one.index] = one
            self._ends(one)
        self.output = replace(output, outputs=[self._whole[index] for index in sorted(self._whole)])

    def over(self, number: int) -> bool:
        """True if this many sequences have ended."""
        return sum(reader.ended for reader in self._readers.values()) == number

    def _ends(self, one: CompletionOutput) -> None:
        if one.index not in self._readers:
            self._readers[one.index] = self._make()
        # The parser marks the end of the sequence in its own copy of the output.
        self._readers[one.index].read(replace(one))
