"""Reads the output of a chat model while it is streamed."""

import secrets
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rocmforge.parsing.events import Content, Event
from rocmforge.parsing.formats import ChatFormat
from rocmforge.parsing.message import Message, gather
from rocmforge.parsing.output import Output
from rocmforge.parsing.readers.harmony import HarmonyReader
from rocmforge.parsing.readers.tagged import TaggedReader
from rocmforge.parsing.schema import Tools
from rocmforge.parsing.source import Source, Steps

_ALPHANUMERIC = string.ascii_letters + string.digits


def new_call_id() -> str:
    """Returns an id in OpenAI's format."""
    return "call_" + _random(24)


def new_mistral_id() -> str:
    """Returns an id in the only format that Mistral's chat templates accept."""
    return _random(9)


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(length))


class OutputParser:
    """Splits the text of one sequence into reasoning, answer and tool calls.

    The events do not depend on how the text is cut into pieces; only the texts of events may be cut elsewhere.
    Text that only looks like a call stays part of the answer.

    Args:
        chat_format: The reply format, from `find_format`.
        tools: The tools of the request, in the format of OpenAI or Anthropic. Without tools, no calls are recognized.
        prompt_text: The end of the prompt. It tells if the reply begins inside a reasoning block.
        new_id: Makes the ids of calls.
    """

    __slots__ = ("_output", "_reading", "_source")

    def __init__(
        self,
        chat_format: ChatFormat,
        tools: Iterable[Mapping[str, Any]] | None = None,
        prompt_text: str = "",
        *,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        self._source = Source()
        self._output = Output(new_id or (new_mistral_id if chat_format.calls == "mistral" else new_call_id))
        known = Tools(tools or ())
        # Without markers there is nothing to parse.
        self._reading: Steps[None] | None = None
        if chat_format.calls == "harmony":
            self._reading = HarmonyReader(self._source, self._output, known, prompt_text).run()
        elif not (reader := TaggedReader(chat_format, self._source, self._output, known, prompt_text)).plain:
            self._reading = reader.run()
        if self._reading is not None:
            next(self._reading)
            # The prompt is not output, although it may have begun a block.
            self._output.take()

    def feed(self, text: str) -> list[Event]:
        """Returns the events of the next piece of text. The list may be empty."""
        if self._reading is None:
            return [Content(text)] if text else []
        self._source.feed(text)
        next(self._reading)
        return self._output.take()

    def finish(self) -> list[Event]:
        """Returns the last events, after the last piece of text. The parser cannot be used again."""
        if self._reading is None:
            return []
        self._source.ended = True
        next(self._reading, None)
        self._output.finish()
        return self._output.take()


def parse(
    chat_format: ChatFormat,
    text: str,
    tools: Iterable[Mapping[str, Any]] | None = None,
    prompt_text: str = "",
    *,
    new_id: Callable[[], str] | None = None,
) -> Message:
    """Returns the message in a complete text. The arguments are those of `OutputParser`."""
    parser = OutputParser(chat_format, tools, prompt_text, new_id=new_id)
    return gather([*parser.feed(text), *parser.finish()])
