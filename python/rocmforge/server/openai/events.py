"""Parts of OpenAI's answers that completions and chats share."""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from rocmforge._rocmforge import Tokenizer
from rocmforge.outputs import CompletionOutput, RequestOutput
from rocmforge.parsing import Event, Reasoning
from rocmforge.server.errors import ApiError, body
from rocmforge.server.http.streaming import event

DONE = b"data: [DONE]\n\n"


def error_event(path: str, error: ApiError) -> bytes:
    """An error after the answer began."""
    return event(body(path, error))


def chunk_head(id_: str, kind: str, model: str) -> dict[str, Any]:
    """Returns the common first fields of all events of an answer."""
    return {"id": id_, "object": kind, "created": int(time.time()), "model": model}


def finish_reason(one: CompletionOutput) -> str | None:
    """Returns the finish reason of a sequence: OpenAI's, and also `abort` and `timeout`.

    Raises:
        ApiError: It ended with an error.
    """
    if one.finish_reason == "error":
        raise ApiError(500, one.error or "the request failed")
    return one.finish_reason


class Usage:
    """Counts the tokens of one HTTP request, which may be several requests to the engine."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._generated = 0

    def add(self, output: RequestOutput, index: int = 0) -> None:
        """Counts the new tokens in an output of the prompt with this index."""
        self._prompts[index] = (len(output.prompt_token_ids), output.num_cached_tokens)
        self._generated += sum(len(one.token_ids) for one in output.outputs)

    def value(self) -> dict[str, Any]:
        """The object that OpenAI calls usage."""
        prompt = sum(tokens for tokens, _ in self._prompts.values())
        cached = sum(cached for _, cached in self._prompts.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._generated,
            "total_tokens": prompt + self._generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


class ReasoningTokens:
    """Counts reasoning tokens from their text, since the engine counts only those of the whole reply."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: defaultdict[int, list[str]] = defaultdict(list)

    def add(self, index: int, events: Iterable[Event]) -> None:
        """Adds the next events of the choice with this index."""
        texts = [event.text for event in events if isinstance(event, Reasoning)]
        if texts:
            self._texts[index] += texts

    def num_tokens(self) -> int:
        """Returns the number of reasoning tokens."""
        texts = ("".join(pieces) for pieces in self._texts.values())
        return sum(len(self._tokenizer.encode(text, add_special=False)) for text in texts)


def response_usage(usage: Usage, reasoning: ReasoningTokens) -> dict[str, Any]:
    """Returns the usage of an answer in the format of responses."""
    counts = usage.value()
    cached = counts["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning.num_tokens()},
        "total_tokens": counts["total_tokens"],
    }
