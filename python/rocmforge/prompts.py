"""The forms in which prompts and their parameters may be given."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import SamplingParams
from rocmforge.errors import InvalidRequestError

TokenIds: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
Prompt: TypeAlias = str | TokenIds
Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (text or token ids) or a sequence of them, as a list; an array has a prompt per row."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, np.ndarray):
        return list(prompts) if prompts.ndim == 2 else [prompts]
    if isinstance(prompts, bytes | bytearray | Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts: got {type(prompts)}, expected text, token ids, or a list of either")
    items: list[Any] = list(prompts)
    if not items:
        raise InvalidRequestError("prompts: got an empty list, expected at least one prompt or token id")
    return [items] if isinstance(items[0], Integral) else items


def params_list(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One `SamplingParams` for all of `count` prompts, or one for each."""
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, str | Mapping) or not isinstance(params, Iterable):
        raise TypeError(f"sampling_params: got {type(params)}, expected one SamplingParams, or one for each prompt")
    items = list(params)
    if len(items) != count:
        raise InvalidRequestError(f"sampling_params: got {len(items)} for {count} prompts, expected one, or one each")
    return items


def conversation_list(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """One conversation (a list of messages) or a sequence of them, as a list."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"messages: got {type(messages)}, expected a list of messages, or a list of such lists")
    items: list[Any] = list(messages)
    if not items:
        raise InvalidRequestError("messages: got an empty list, expected at least one message")
    return [items] if isinstance(items[0], Mapping) else items
