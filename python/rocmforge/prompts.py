"""The forms in which prompts and their parameters may be given."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import SamplingParams
from rocmforge.errors import InvalidRequestError

TokenIds: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
Prompt: TypeAlias = str | TokenIds


class TextPrompt(TypedDict):
    """A text, as vLLM names it."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids, as vLLM names them."""

    prompt_token_ids: TokenIds


AnyPrompt: TypeAlias = Prompt | TextPrompt | TokensPrompt
Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]
ContentFormat: TypeAlias = Literal["auto", "string", "openai"]


class ChatOptions(TypedDict, total=False):
    """Options for making a prompt of a conversation: keyword arguments of everything that takes messages."""

    add_generation_prompt: bool
    """Whether the prompt begins the assistant's turn; by default it does."""
    continue_final_message: bool
    """Whether the prompt ends with the text of the last message, for the model to go on with it; needs
    `add_generation_prompt=False`."""
    tools: Sequence[Mapping[str, Any]] | None
    """Functions that the model may call, as JSON schemas."""
    chat_template: str | None
    """Replaces the file's template. It is code: take it from nobody that you do not trust."""
    chat_template_content_format: ContentFormat
    """`string` joins the text parts of a message's content by newlines, `openai` makes a part of content that is a
    string, `auto` (by default) joins parts where the template takes strings only."""
    chat_template_kwargs: dict[str, Any] | None
    """Further variables of the template, such as `{"enable_thinking": False}`."""


def prompt_list(prompts: AnyPrompt | Sequence[AnyPrompt]) -> list[Prompt]:
    """Lists one prompt (text or token ids) or a sequence of them; an array has a prompt per row."""
    if isinstance(prompts, str | Mapping):
        return [plain_prompt(prompts)]
    if isinstance(prompts, np.ndarray):
        return list(prompts) if prompts.ndim == 2 else [prompts]
    if isinstance(prompts, bytes | bytearray) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts: got {type(prompts)}, expected text, token ids, or a list of either")
    iterator: Any = iter(prompts)
    start = list(itertools.islice(iterator, 1))
    if not start:
        raise InvalidRequestError("prompts: got an empty list, expected at least one prompt or token id")
    # The engine reads the rest of an iterable of token ids: it knows when there are too many.
    items: Any = prompts if isinstance(prompts, Sequence) else itertools.chain(start, iterator)
    return [items] if isinstance(start[0], Integral) else [plain_prompt(item) for item in items]


def plain_prompt(prompt: AnyPrompt) -> Prompt:
    """The text or the token ids of a prompt in any form."""
    if not isinstance(prompt, Mapping):
        return prompt
    fields: Mapping[str, Any] = prompt
    if len(fields) == 1:
        if isinstance(text := fields.get("prompt"), str):
            return text
        if "prompt_token_ids" in fields and not isinstance(fields["prompt_token_ids"], str):
            ids: Any = fields["prompt_token_ids"]
            return ids  # type: ignore[no-any-return]
    forms = '{"prompt": text} or {"prompt_token_ids": token ids}'
    raise TypeError(f"prompts: got a dict with {sorted(map(str, fields))}, expected text, token ids, {forms}")


def with_text(prompt: AnyPrompt) -> tuple[Prompt, str | None]:
    """The text or the token ids of a prompt in any form, and the text once more where it is one."""
    plain = plain_prompt(prompt)
    return plain, plain if isinstance(plain, str) else None


def priority_list(priority: int | Sequence[int], count: int) -> list[int]:
    """Lists a priority for each of `count` prompts; a single one is for all of them."""
    if isinstance(priority, str | bytes) or not isinstance(priority, Integral | Iterable):
        raise TypeError(f"priority: got {type(priority)}, expected an integer, or one for each prompt")
    items: list[Any] = [priority] * count if isinstance(priority, Integral) else list(priority)
    if len(items) != count:
        raise InvalidRequestError(f"priority: got {len(items)} for {count} prompts, expected one, or one each")
    for item in items:
        if not isinstance(item, Integral):
            raise TypeError(f"priority: got {type(item)}, expected an integer")
        if not -(2**31) <= int(item) < 2**31:
            raise InvalidRequestError(f"priority: got {item}, expected an integer from {-(2**31)} to {2**31 - 1}")
    return items


def params_list(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """Lists a `SamplingParams` for each of `count` prompts; a single one is for all of them."""
    if isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, str | Mapping) or not isinstance(params, Iterable):
        raise TypeError(f"sampling_params: got {type(params)}, expected one SamplingParams, or one for each prompt")
    items = list(params)
    if len(items) != count:
        raise InvalidRequestError(f"sampling_params: got {len(items)} for {count} prompts, expected one, or one each")
    return items


def conversation_list(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """Lists one conversation (a list of messages) or a sequence of them."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"messages: got {type(messages)}, expected a list of messages, or a list of such lists")
    items: list[Any] = list(messages)
    if not items:
        raise InvalidRequestError("messages: got an empty list, expected at least one message")
    return [items] if isinstance(items[0], Mapping) else items
