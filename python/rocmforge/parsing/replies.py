"""The reply format of a loaded model: its markers, found once, in the model's own vocabulary."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rocmforge.parsing.formats import ChatFormat, ControlTokens, find_format
from rocmforge.parsing.grammars.lark import literal
from rocmforge.parsing.needs import renderer

# The texts of harmony around its channel of reasoning, which is no block within an answer.
_HARMONY_OPENING = "<|channel|>analysis<|message|>"
_HARMONY_CLOSING = "<|end|>"


class ChatTokenizer(ControlTokens, Protocol):
    """The part of `rocmforge.Tokenizer` that finds a reply format."""

    @property
    def chat_template(self) -> str | None:
        """The chat template of the model file."""

    @property
    def tool_use_template(self) -> str | None:
        """The model file's template for conversations with tools; the only one, if it has no other."""

    @property
    def apply_chat_template(self) -> Callable[..., str]:
        """Renders a conversation."""


class Markers:
    """The markers of a reply format in the vocabulary of a model.

    Args:
        tokenizer: The model's.
    """

    __slots__ = ("_tokenizer",)

    def __init__(self, tokenizer: ControlTokens) -> None:
        self._tokenizer = tokenizer

    def token(self, marker: str) -> int | None:
        """Returns the token id of a marker; `None` if it is not a single token."""
        ids = self._tokenizer.encode(marker, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    def grammar(self, marker: str) -> str:
        """Returns the grammar of a marker, for `call_grammar`: a control token, or a text."""
        token = self.token(marker)
        return literal(marker) if token is None or not self._tokenizer.is_special(token) else f"<[{token}]>"


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a model replies by its chat template."""

    template: str
    """The chat template, followed by the one for tools if that is another; empty for a model without one."""
    chat: ChatFormat
    """The markers of reasoning, answer and calls, for `OutputParser`."""
    control_tokens: bool = False
    """True if some markers are control tokens. Requests then need `SamplingParams(skip_special_tokens=False)`."""
    end_of_reasoning: int | None = None
    """The token that ends the reasoning; `None` for a model without reasoning, or without such a token."""

    @classmethod
    def of(cls, tokenizer: ChatTokenizer, chat_template: str | None = None) -> "ReplyFormat":
        """Finds the format.

        Args:
            tokenizer: The model's.
            chat_template: Replaces the chat template of the model file.
        """
        # A file may have its markers of calls only in the template for tools.
        of_file = dict.fromkeys(filter(None, (tokenizer.chat_template, tokenizer.tool_use_template)))
        template = chat_template or "\n".join(of_file)
        chat = find_format(template, renderer(tokenizer.apply_chat_template, chat_template))
        found = cls(template, chat, chat.needs_special_tokens(tokenizer))
        end = Markers(tokenizer).token(found.closing) if found.thinks else None
        return cls(template, chat, found.control_tokens, end)

    @property
    def thinks(self) -> bool:
        """True if the model may reason before it answers."""
        return self.chat.thinking is not None or self.chat.calls == "harmony"

    @property
    def switches_reasoning(self) -> bool:
        """True if the template's variable `enable_thinking` turns reasoning on and off."""
        return "enable_thinking" in self.template

    @property
    def begin_token_id(self) -> int | None:
        """The `begin_token_id` of `StructuredOutputsParams`: where a restricted answer begins.

        A model that always reasons does so before it. Where the template has the switch, turn reasoning off.
        """
        return None if self.switches_reasoning else self.end_of_reasoning

    @property
    def opening(self) -> str:
        """The text that begins the reasoning, as the model writes it; empty for a model without reasoning."""
        if self.chat.calls == "harmony":
            return _HARMONY_OPENING
        thinking = self.chat.thinking
        if thinking is None:
            return ""
        return thinking.open + (thinking.label or ("" if thinking.anywhere else "\n"))

    @property
    def closing(self) -> str:
        """The marker that ends the reasoning."""
        if self.chat.calls == "harmony":
            return _HARMONY_CLOSING
        return "" if self.chat.thinking is None else self.chat.thinking.close
