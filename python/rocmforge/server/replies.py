"""The replies of a chat model: thoughts, answer and calls, found in the same way for every API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rocmforge.async_llm import AsyncLLM
from rocmforge.errors import InvalidRequestError
from rocmforge.outputs import CompletionOutput
from rocmforge.parsing import ChatFormat, Event, OutputParser, ToolCallArguments, ToolCallStart, find_format
from rocmforge.server.errors import ApiError

FunctionTool = dict[str, Any]
"""A tool as Hugging Face's chat templates take it, which is OpenAI's form."""


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The form in which a model writes, found once, and the variables by which its template sets the thinking."""

    template: str
    chat: ChatFormat
    control_tokens: bool
    """Whether texts are needed with control tokens, because some of these mark the parts of a reply."""

    @classmethod
    def of(cls, engine: AsyncLLM, template: str | None) -> Self:
        """Finds the format.

        Args:
            engine: The model.
            template: What replaces the chat template of its file.
        """
        try:
            tokenizer = engine.tokenizer
        except InvalidRequestError:
            return cls("", ChatFormat(), control_tokens=False)
        text = template or tokenizer.chat_template or ""
        chat = find_format(text)
        return cls(text, chat, chat.needs_special_tokens(tokenizer))

    @property
    def thinks(self) -> bool:
        """Whether the model may think before it answers."""
        return self.chat.thinking is not None or self.chat.calls == "harmony"

    @property
    def opening(self) -> str:
        """The text that begins thoughts, as the model writes it; empty for a model without."""
        if self.chat.calls == "harmony":
            return "<|channel|>analysis<|message|>"
        thinking = self.chat.thinking
        if thinking is None:
            return ""
        return thinking.open + (thinking.label or ("" if thinking.anywhere else "\n"))

    @property
    def closing(self) -> str:
        """The marker that ends thoughts."""
        if self.chat.calls == "harmony":
            return "<|end|>"
        return "" if self.chat.thinking is None else self.chat.thinking.close

    def begins_thoughts(self, prompt: str) -> bool:
        """Whether a prompt ends within thoughts that it has begun."""
        return self.thinks and prompt.rstrip().endswith(self.opening.rstrip())

    def may_begin_thoughts(self, prompt: str, *, asked: bool, ruled: bool) -> bool:
        """Whether thoughts are to be begun behind a prompt.

        Args:
            prompt: It has not begun them.
            asked: Whether the client has asked for thoughts.
            ruled: Whether the reply has a form. A model that writes harmony thinks in any case, before its form.
        """
        end = prompt.rstrip()
        if self.chat.calls == "harmony":
            return end.endswith("<|start|>assistant") and (asked or ruled)
        return asked and self.thinks and not end.endswith(self.closing)

    @property
    def knows_efforts(self) -> bool:
        """Whether the chat template has a variable for how much the model thinks."""
        return "reasoning_effort" in self.template

    def check_tools(self) -> None:
        """Refuses tools where nothing says how the model calls them.

        Raises:
            ApiError: The chat template has no form for calls.
        """
        if self.chat.calls is None:
            raise ApiError(400, "tools: the model's chat template has no form for calls; leave them out", param="tools")

    def thinking(self, *, on: bool, param: str) -> dict[str, Any]:
        """Variables of the chat template that turn the thinking on or off.

        Raises:
            ApiError: The template does not do that.
        """
        if "enable_thinking" in self.template:
            return {"enable_thinking": on}
        if on == self.thinks:
            return {}
        what = "the model does not think" if on else "the model's chat template cannot turn the thinking off"
        raise ApiError(400, f"{param}: {what}; leave it out", param=param)

    def effort(self, effort: str, param: str) -> dict[str, Any]:
        """Variables of the chat template that set how much the model thinks.

        Raises:
            ApiError: The template does not do that.
        """
        if self.knows_efforts:
            return {"reasoning_effort": effort}
        if effort == "none" or "enable_thinking" in self.template:
            return self.thinking(on=effort != "none", param=param)
        raise ApiError(400, f"{param}: the model's chat template knows no efforts; leave it out", param=param)


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> FunctionTool:
    """Describes a function to the chat template."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def check_ending(one: CompletionOutput) -> None:
    """Refuses to give out what ended for a reason that an API has no words for.

    Raises:
        ApiError: The time was over, the server has ended the request, or it failed.
    """
    match one.finish_reason:
        case "timeout":
            raise ApiError(408, "timeout: the time of the request was over; give it more, or ask for fewer tokens")
        case "abort":
            raise ApiError(503, "the server has ended the request; try again", headers={"Retry-After": "1"})
        case "error":
            raise ApiError(500, one.error or "the request failed")


class Reader:
    """Reads one sequence.

    Args:
        form: How the model writes.
        tools: What it may call.
        prompt: The text of the prompt, which may begin the thinking.
        parallel: Whether there may be more than one call; otherwise those after the first are left out.
    """

    def __init__(self, form: ReplyFormat, tools: Sequence[FunctionTool], prompt: str, *, parallel: bool = True) -> None:
        self._parser = OutputParser(form.chat, tools, prompt)
        self._parallel = parallel
        self.called = False
        """Whether there was a call so far."""

    def read(self, one: CompletionOutput) -> list[Event]:
        """Finds the events in the next output of the sequence."""
        events = self._parser.feed(one.text)
        if one.finished():
            events += self._parser.finish()
        if not self._parallel:
            events = [event for event in events if not _is_later_call(event)]
        self.called = self.called or any(isinstance(event, ToolCallStart) for event in events)
        return events


def _is_later_call(event: Event) -> bool:
    return isinstance(event, ToolCallStart | ToolCallArguments) and event.index > 0
