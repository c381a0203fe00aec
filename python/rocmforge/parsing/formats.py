"""Finds in a chat template how its model writes reasoning and tool calls: the reply format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from rocmforge.parsing.derivation import begins_calls, derive_answer, derive_reasoning, derive_shape
from rocmforge.parsing.needs import Render, find_needs
from rocmforge.parsing.shapes import GRANITE_3, LFM2, PHI_4, CallShape, pieces

CallFormat = Literal["hermes", "qwen-xml", "glm", "llama", "mistral", "gemma4", "harmony", "derived"]


@dataclass(frozen=True, slots=True)
class Thinking:
    """The markers around a model's reasoning."""

    open: str
    close: str
    label: str = ""
    """A text that may follow the opening marker and is not part of the reasoning."""
    anywhere: bool = False
    """True if the markers also count within an answer, because they are control tokens."""


COHERE_THINK = Thinking("<|START_THINKING|>", "<|END_THINKING|>", anywhere=True)
THINK = Thinking("<think>", "</think>")
MISTRAL_THINK = Thinking("[THINK]", "[/THINK]", anywhere=True)
SEED_THINK = Thinking("<seed:think>", "</seed:think>")
GEMMA_THINK = Thinking("<|channel>", "<channel|>", label="thought\n", anywhere=True)

# For each call format: the marker that begins a call, then its other markers.
CALL_MARKERS: Mapping[CallFormat, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "qwen-xml": ("<tool_call>", "<function=", "</function>", "</tool_call>"),
    "glm": ("<tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
    "llama": ("<|python_tag|>", "{"),
    "mistral": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    "gemma4": ("<|tool_call>", '<|"|>', "<tool_call|>", "<|tool_response>"),
    "harmony": ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    "derived": (),
}


class ControlTokens(Protocol):
    """The part of `rocmforge.Tokenizer` that recognizes control tokens."""

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Returns the token ids of a text."""

    def is_special(self, token_id: int) -> bool:
        """True if a token is a control token."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The reply format of a model. Without reasoning and calls, the whole reply is the answer."""

    thinking: Thinking | None = None
    """The markers of reasoning; `None` also for harmony, which uses channels instead."""
    calls: CallFormat | None = None
    shape: CallShape | None = None
    """The shape of calls, for the call format `derived`."""
    answer: tuple[str, ...] = ()
    """The markers around the answer, if the model has any; they are not part of it."""
    compact: bool = False
    """True if the template writes no line breaks within calls of the format `glm`, which older ones write."""

    def markers(self) -> tuple[str, ...]:
        """Returns all texts that act as markers."""
        thinking = () if self.thinking is None else (self.thinking.open, self.thinking.close)
        calls = () if self.calls is None else CALL_MARKERS[self.calls]
        return (*thinking, *self.answer, *calls, *(() if self.shape is None else self.shape.marks()))

    def describe(self) -> str:
        """Returns a description of the call format, in one line."""
        if self.shape is None:
            return self.calls or "none"
        # The template comes from an untrusted file: `repr` keeps its control characters off the terminal.
        return f"derived from the template: {self.shape.example()!r}"

    def needs_special_tokens(self, tokenizer: ControlTokens) -> bool:
        """True if a marker is a control token of the model.

        The parser then needs texts with control tokens: `SamplingParams(skip_special_tokens=False)`.
        """
        ids = (tokenizer.encode(marker, add_special=False, parse_special=True) for marker in self.markers())
        return any(len(found) == 1 and tokenizer.is_special(found[0]) for found in ids)


def find_format(chat_template: str | None, render: Render | None = None) -> ChatFormat:
    """Finds the reply format in a chat template.

    Args:
        chat_template: The template's text; `None` for a model without one.
        render: Renders conversations with the template, from `renderer`. With it, the call format of any family is
            derived from rendered calls. Without it, only well-known formats are found, by the template's text.
    """
    template = chat_template or ""
    calls = _calls(template)
    thinking = None if calls == "harmony" else _thinking(template)
    if calls in _OWN_READERS:
        return ChatFormat(thinking, calls)
    if thinking is None and render is not None and template and (tags := derive_reasoning(render)) is not None:
        thinking = Thinking(*tags)
    marks = () if thinking is None else (thinking.open, thinking.close)
    shape: CallShape | None = None
    answer: tuple[str, ...] = ()
    if render is not None and template:
        needs = find_needs(render)
        shape, answer = derive_shape(render, needs, marks), derive_answer(render, marks)
        if shape is None and calls is not None and not begins_calls(render, needs, CALL_MARKERS[calls][0], marks):
            calls = None
    shape = shape or _shape(template)
    if shape is None or (calls is not None and _is_format(shape, calls)):
        compact = calls == "glm" and shape is not None and "\n" not in shape.middle + shape.value_close
        return ChatFormat(thinking, calls, answer=answer, compact=compact)
    if not shape.marker:
        is_llama = (
            shape.kind == "json" and shape.name_key == "name" and shape.arguments_key in ("arguments", "parameters")
        )
        return ChatFormat(thinking, "llama" if is_llama else None, answer=answer)
    return ChatFormat(thinking, "derived", shape, answer)


# Formats that no shape describes: their readers know more than the templates show.
_OWN_READERS: frozenset[CallFormat | None] = frozenset({"harmony", "gemma4", "mistral"})


def _is_format(shape: CallShape, calls: CallFormat) -> bool:
    """True if a shape is a call format with a dedicated reader, which repairs more errors of models."""
    opened = "".join(pieces(shape.open + shape.before))
    formats: dict[CallFormat, tuple[str, str]] = {
        "hermes": ("json", "<tool_call>"),
        "qwen-xml": ("tagged", "<tool_call><function="),
        "glm": ("tagged", "<tool_call>"),
        "llama": ("json", ""),
    }
    return formats.get(calls) == (shape.kind, opened) and shape.name_key == "name"


def _shape(template: str) -> CallShape | None:
    """Returns the shape of a family whose template does not write calls."""
    if "<|tool_list_start|>" in template or "List of tools: [" in template:
        return LFM2
    if "<|tool|>" in template and "<|/tool|>" in template:
        return PHI_4
    return GRANITE_3 if "<|tool_call|>" in template else None


def _thinking(template: str) -> Thinking | None:
    for thinking in (MISTRAL_THINK, GEMMA_THINK, SEED_THINK, COHERE_THINK, THINK):
        if thinking.open in template or thinking.close in template:
            return thinking
    return None


def _calls(template: str) -> CallFormat | None:
    def has(*texts: str) -> bool:
        return all(text in template for text in texts)

    # Formats that share a marker with another one come before it.
    formats: dict[CallFormat, bool] = {
        "harmony": has("<|start|>", "<|channel|>", "<|message|>"),
        "gemma4": has("<|tool_call>", "<tool_call|>"),
        "mistral": has("[TOOL_CALLS]"),
        "qwen-xml": has("<tool_call>", "<function=", "<parameter="),
        "glm": has("<tool_call>", "<arg_key>", "<arg_value>"),
        "hermes": has("<tool_call>"),
        "llama": has("<|start_header_id|>", '"name"', '"parameters"'),
    }
    return next((format_ for format_, found in formats.items() if found), None)
