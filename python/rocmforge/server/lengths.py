"""Refuses texts that cannot fit by their length, before any work on them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rocmforge.async_llm import AsyncLLM
from rocmforge.server.errors import ApiError

# Most letters of a text for each token of the context, for tokenizers that drop white space or make one token of an
# unknown word. For these, no number of characters is too large.
LETTERS_PER_TOKEN = 1024


def longest_text(engine: AsyncLLM) -> int:
    """Returns the most letters of a text that may fit into a model's context."""
    most = engine.tokenizer.max_text_bytes(engine.max_model_len)
    return engine.max_model_len * LETTERS_PER_TOKEN if most is None else most


def check_length(engine: AsyncLLM, param: str, *texts: str) -> None:
    """Refuses a text that cannot fit.

    Raises:
        ApiError: A text is too long.
    """
    # Prompts of token ids need no tokenizer, which the file may lack.
    if not texts:
        return
    longest = longest_text(engine)
    for text in texts:
        if len(text) > longest:
            raise _too_long(param, len(text), longest)


def check_token_ids(engine: AsyncLLM, param: str, *prompts: Sequence[int]) -> None:
    """Refuses token ids that cannot fit, since the engine reads every one of them to say so.

    Raises:
        ApiError: A prompt is too long.
    """
    longest = engine.max_model_len
    for index, prompt in enumerate(prompts):
        if len(prompt) > longest:
            which = param if len(prompts) == 1 else f"{param} {index}:"
            raise ApiError(
                400,
                f"{which} length in tokens: got {len(prompt)}, expected at most {longest} (max_model_len); shorten it",
                param=param,
                code="context_length_exceeded",
            )


def check_conversation(engine: AsyncLLM, param: str, messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a conversation whose texts cannot fit together.

    Raises:
        ApiError: Together they are too long.
    """
    longest = longest_text(engine)
    length, left = 0, list(messages)
    while left:
        value: Any = left.pop()
        if isinstance(value, str):
            length += len(value)
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    if length > longest:
        raise _too_long(param, length, longest)


def _too_long(param: str, got: int, longest: int) -> ApiError:
    return ApiError(
        400,
        f"{param}: got {got} letters, expected at most {longest}, which may fit into the model's context; shorten it",
        param=param,
        code="context_length_exceeded",
    )
