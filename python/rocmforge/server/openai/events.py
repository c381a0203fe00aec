"""Parts of OpenAI's answers that completions and chats share."""

import time
from typing import Any

from rocmforge.outputs import CompletionOutput, RequestOutput
from rocmforge.server.errors import ApiError, body
from rocmforge.server.streaming import event

DONE = b"data: [DONE]\n\n"


def error_event(path: str, error: ApiError) -> bytes:
    """An error after the answer began."""
    return event(body(path, error))


def chunk_head(id_: str, kind: str, model: str) -> dict[str, Any]:
    """Makes the fields that all events of an answer begin with."""
    return {"id": id_, "object": kind, "created": int(time.time()), "model": model}


def finish_reason(one: CompletionOutput) -> str | None:
    """How a sequence ended: OpenAI's words, and `abort` and `timeout` where OpenAI has none.

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
        """Counts what is new in an output of the prompt with that number."""
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
