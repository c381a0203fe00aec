"""Messages of chat models: the text of an answer, read as content, reasoning and tool calls."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rocmforge._rocmforge import Tokenizer
from rocmforge.errors import InvalidRequestError

if TYPE_CHECKING:
    from rocmforge.outputs import CompletionOutput
    from rocmforge.parsing import Message, ReplyFormat

NO_CALLS = "tools: the model's chat template has no call format; leave them out, or pass another chat_template"


# Formats that are remembered. A program that makes a new template for each request needs only the last ones.
MAX_FORMATS = 16


class ReplyFormats:
    """The formats of a model, by chat template; those used last are remembered."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._found = functools.lru_cache(MAX_FORMATS)(functools.partial(_find, tokenizer))

    def of(self, template: str | None) -> "ReplyFormat":
        """Returns the format of a template; `None` is that of the file."""
        return self._found(template)

    def reader(self, options: Mapping[str, Any], prompt: str) -> "ReplyReader":
        """Returns what reads the answers to a prompt.

        Args:
            options: The `ChatOptions` by which the prompt was made.
            prompt: Its text.
        """
        return ReplyReader(self, options.get("chat_template"), list(options.get("tools") or ()), prompt)

    def check_tools(self, options: Mapping[str, Any]) -> None:
        """Refuses tools that the chat template would leave out.

        Raises:
            InvalidRequestError: There are tools, and the template has no call format.
        """
        if options.get("tools") and self.of(options.get("chat_template")).chat.calls is None:
            raise InvalidRequestError(NO_CALLS)

    def text(self, one: "CompletionOutput", *, control_tokens: bool) -> str:
        """Returns the text of a sequence, with its control tokens where the format needs these."""
        if not control_tokens:
            return one.text
        ended_by_token = one.finish_reason == "stop" and not isinstance(one.stop_reason, str)
        text = self._tokenizer.decode(one.token_ids[:-1] if ended_by_token else one.token_ids)
        if isinstance(one.stop_reason, str):
            end = text.rfind(one.stop_reason)
            text = text if end < 0 else text[:end]
        return text


def _find(tokenizer: Tokenizer, template: str | None) -> "ReplyFormat":
    # Programs that only complete text do without the parsers.
    from rocmforge.parsing import ReplyFormat  # noqa: PLC0415

    return ReplyFormat.of(tokenizer, template)


class ReplyReader:
    """Reads the answers to one prompt."""

    __slots__ = ("_formats", "_prompt", "_template", "_tools")

    def __init__(
        self, formats: ReplyFormats, template: str | None, tools: Sequence[Mapping[str, Any]], prompt: str
    ) -> None:
        self._formats = formats
        self._template = template
        self._tools = tools
        self._prompt = prompt

    def read(self, one: "CompletionOutput") -> "Message":
        """Returns the message that a sequence is."""
        from rocmforge.parsing import parse  # noqa: PLC0415 - as above

        found = self._formats.of(self._template)
        text = self._formats.text(one, control_tokens=found.control_tokens)
        return parse(found.chat, text, self._tools, self._prompt)
