"""Parts of Anthropic's answers: their events, their counts of tokens, how they end."""

from collections.abc import Iterable
from typing import Any

from rocmforge._rocmforge import Tokenizer
from rocmforge.outputs import CompletionOutput, RequestOutput
from rocmforge.parsing import Event, Reasoning
from rocmforge.server.answers.replies import check_ending
from rocmforge.server.http.streaming import named_event

PING = named_event({"type": "ping"})


class Usage:
    """Counts the tokens of one request."""

    def __init__(self) -> None:
        self._prompt = 0
        self._cached = 0
        self.generated = 0
        self._reasoning: list[str] = []

    def add(self, output: RequestOutput, events: Iterable[Event]) -> None:
        """Counts the new tokens of an output, and takes its events."""
        self._reasoning += [event.text for event in events if isinstance(event, Reasoning)]
        self._prompt, self._cached = len(output.prompt_token_ids), output.num_cached_tokens
        self.generated += sum(len(one.token_ids) for one in output.outputs)

    def value(self) -> dict[str, Any]:
        """The object that Anthropic calls usage: the three counts of input add up to the prompt."""
        return {
            "input_tokens": self._prompt - self._cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._cached,
            "output_tokens": self.generated,
        }

    def value_at_end(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """Returns the usage at the end of an answer. Reasoning tokens are counted again from the text."""
        reasoning = len(tokenizer.encode("".join(self._reasoning), add_special=False)) if self._reasoning else 0
        return self.value() | {"output_tokens_details": {"thinking_tokens": min(reasoning, self.generated)}}


def ending(one: CompletionOutput, *, whole: bool, called: bool) -> dict[str, str | None]:
    """Why a sequence ended, in Anthropic's words.

    Args:
        one: A sequence that has ended.
        whole: True if it has as many tokens as the request allows, so that the room of the model did not end it.
        called: True if it calls a tool.

    Raises:
        ApiError: Its time was over, the server has ended it, or it failed: Anthropic has no words for that.
    """
    check_ending(one)
    if one.finish_reason == "length":
        return {"stop_reason": "max_tokens" if whole else "model_context_window_exceeded", "stop_sequence": None}
    if isinstance(one.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": one.stop_reason}
    return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}
