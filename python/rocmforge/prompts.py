"""The forms in which prompts and their parameters may be given."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import Image, SamplingParams
from rocmforge.errors import InvalidRequestError
from rocmforge.images import AnyImage, image_list

TokenIds: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
Prompt: TypeAlias = str | TokenIds


class MultiModalData(TypedDict):
    """The images of a prompt, as vLLM names them."""

    image: AnyImage | Sequence[AnyImage]


class TextPrompt(TypedDict):
    """A text, as vLLM names it."""

    prompt: str
    images: NotRequired[Sequence[AnyImage]]
    """Images for the placeholders in the prompt, in order. A text with images may spell control tokens."""
    multi_modal_data: NotRequired[MultiModalData]
    """vLLM's name for `images`."""


class TokensPrompt(TypedDict):
    """Token ids, as vLLM names them."""

    prompt_token_ids: TokenIds
    images: NotRequired[Sequence[AnyImage]]
    """Images for the placeholders in the prompt, in order."""
    multi_modal_data: NotRequired[MultiModalData]
    """vLLM's name for `images`."""


class PlainPrompt(NamedTuple):
    """A prompt in the form that the engine takes."""

    content: Prompt
    images: tuple[Image, ...] = ()

    @property
    def text(self) -> str | None:
        """The text, of a prompt that was given as one."""
        return self.content if isinstance(self.content, str) else None

    def without_images(self) -> Prompt:
        """Returns the text or the token ids.

        Raises:
            InvalidRequestError: The prompt has images.
        """
        if self.images:
            raise InvalidRequestError("prompts: got images, expected a prompt without; only generation takes images")
        return self.content


AnyPrompt: TypeAlias = Prompt | TextPrompt | TokensPrompt
Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]
ContentFormat: TypeAlias = Literal["auto", "string", "openai"]


class ChatOptions(TypedDict, total=False):
    """Options for the chat template: keyword arguments of every method that takes messages."""

    add_generation_prompt: bool
    """True (the default) if the prompt begins the assistant's turn."""
    continue_final_message: bool
    """True if the prompt ends with the text of the last message, so that the model continues it. Requires
    `add_generation_prompt=False`."""
    tools: Sequence[Mapping[str, Any]] | None
    """Functions that the model may call, as JSON schemas."""
    chat_template: str | None
    """Replaces the file's template. It is code: use only templates that you trust."""
    chat_template_content_format: ContentFormat
    """The format of a message's content for the template.

    - `string`: text parts are joined by newlines.
    - `openai`: a string becomes a list with one part.
    - `auto` (the default): parts are joined if the template supports only strings."""
    chat_template_kwargs: dict[str, Any] | None
    """Additional variables of the template, such as `{"enable_thinking": False}`."""
    control_texts: dict[str, str] | None
    """Placeholders in the messages, and the texts that the prompt has in their place. These texts count as the
    template's and may become control tokens. So a placeholder must be a secret from the authors of the messages."""


def prompt_list(prompts: AnyPrompt | Sequence[AnyPrompt]) -> list[PlainPrompt]:
    """Lists one prompt (text or token ids) or a sequence of them; an array has a prompt per row."""
    if isinstance(prompts, str | Mapping):
        return [plain_prompt(prompts)]
    if isinstance(prompts, np.ndarray):
        return [PlainPrompt(ids) for ids in (prompts if prompts.ndim == 2 else [prompts])]
    if isinstance(prompts, bytes | bytearray) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts: got {type(prompts)}, expected text, token ids, or a list of either")
    iterator: Any = iter(prompts)
    start = list(itertools.islice(iterator, 1))
    if not start:
        raise InvalidRequestError("prompts: got an empty list, expected at least one prompt or token id")
    # The engine reads the rest of an iterable of token ids: it knows when there are too many.
    items: Any = prompts if isinstance(prompts, Sequence) else itertools.chain(start, iterator)
    return [PlainPrompt(items)] if isinstance(start[0], Integral) else [plain_prompt(item) for item in items]


def has_images(prompt: AnyPrompt) -> bool:
    """True if a prompt may have images, which take time to read."""
    return isinstance(prompt, Mapping) and ("images" in prompt or "multi_modal_data" in prompt)


def plain_prompt(prompt: AnyPrompt) -> PlainPrompt:
    """Returns the text or the token ids of a prompt, and its images.

    Raises:
        InvalidRequestError: An image cannot be read.
    """
    if not isinstance(prompt, Mapping):
        return PlainPrompt(prompt)
    fields: dict[str, Any] = dict(prompt)
    images = _images(fields)
    if len(fields) == 1:
        if isinstance(text := fields.get("prompt"), str):
            return PlainPrompt(text, images)
        if "prompt_token_ids" in fields and not isinstance(fields["prompt_token_ids"], str):
            return PlainPrompt(fields["prompt_token_ids"], images)
    forms = '{"prompt": text} or {"prompt_token_ids": token ids}, and "images" in it'
    raise TypeError(f"prompts: got a dict with {sorted(map(str, prompt))}, expected text, token ids, {forms}")


def with_images(ids: TokenIds, images: Sequence[Image]) -> AnyPrompt:
    """Returns a prompt of token ids, with the images for its placeholders if there are any."""
    return TokensPrompt(prompt_token_ids=ids, images=images) if images else ids


def _images(fields: dict[str, Any]) -> tuple[Image, ...]:
    """Takes the images out of the fields of a prompt."""
    images, theirs = fields.pop("images", None), fields.pop("multi_modal_data", None)
    if theirs:
        if images is not None or not isinstance(theirs, Mapping) or set(theirs) != {"image"}:
            raise InvalidRequestError(
                'multi_modal_data: expected {"image": ...} alone in it, and no "images" beside it; models read images '
                "and text"
            )
        images = theirs["image"]
    return () if images is None else image_list(images)


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
