"""Replies of a chat model, split into reasoning, answer and calls in the same way for every API."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rocmforge.async_llm import AsyncLLM
from rocmforge.errors import InvalidRequestError
from rocmforge.outputs import CompletionOutput
from rocmforge.parsing import (
    ChatFormat,
    Event,
    OutputParser,
    ReplyFormat,
    ToolCallArguments,
    ToolCallStart,
    renderer,
)
from rocmforge.parsing.needs import NO_NEEDS, TemplateNeeds, find_needs
from rocmforge.server.answers.stops import AnswerStops, StopFinder
from rocmforge.server.errors import ApiError

FunctionTool = dict[str, Any]
"""A tool as Hugging Face's chat templates expect it, which is OpenAI's format."""


@dataclass(frozen=True, slots=True)
class ServedFormat(ReplyFormat):
    """The reply format of a served model, with the needs of its template and what clients may ask of it."""

    needs: TemplateNeeds = NO_NEEDS
    """The template's needs in conversations with tools."""

    @classmethod
    def served(cls, engine: AsyncLLM, template: str | None) -> Self:
        """Finds the format.

        Args:
            engine: The model.
            template: Replaces the chat template of its file.
        """
        try:
            tokenizer = engine.tokenizer
        except InvalidRequestError:
            return cls("", ChatFormat())
        found = ReplyFormat.of(tokenizer, template)
        needs = find_needs(renderer(tokenizer.apply_chat_template, template)) if found.template else NO_NEEDS
        return cls(found.template, found.chat, found.control_tokens, found.end_of_reasoning, needs)

    def has_parts(self, tools: Sequence[FunctionTool]) -> bool:
        """True if a reply may have reasoning or calls beside its answer."""
        return self.thinks or bool(self.chat.answer) or (self.chat.calls is not None and bool(tools))

    def begins_reasoning(self, prompt: str) -> bool:
        """True if a prompt ends within reasoning that it has begun."""
        return self.thinks and prompt.rstrip().endswith(self.opening.rstrip())

    def may_begin_reasoning(self, prompt: str, *, asked: bool, ruled: bool) -> bool:
        """True if the server must append the beginning of reasoning to a prompt.

        Args:
            prompt: A prompt that has not begun the reasoning.
            asked: True if the client requested reasoning.
            ruled: True if a grammar applies to the reply. A model that writes harmony always reasons before it.
        """
        end = prompt.rstrip()
        if self.chat.calls == "harmony":
            return end.endswith("<|start|>assistant") and (asked or ruled)
        return asked and self.thinks and not end.endswith(self.closing)

    @property
    def knows_efforts(self) -> bool:
        """True if the chat template has a variable for the reasoning effort."""
        return "reasoning_effort" in self.template

    def check_tools(self) -> None:
        """Refuses tools if the call format of the model is unknown.

        Raises:
            ApiError: The chat template has no call format.
        """
        if self.chat.calls is None:
            raise ApiError(400, "tools: the model's chat template has no call format; leave them out", param="tools")

    def thinking(self, *, on: bool, param: str) -> dict[str, Any]:
        """Returns the variables of the chat template that turn reasoning on or off.

        Raises:
            ApiError: The template cannot do it.
        """
        if self.switches_reasoning:
            return {"enable_thinking": on}
        if on == self.thinks:
            return {}
        what = "the model does not think" if on else "the model's chat template cannot turn the thinking off"
        raise ApiError(400, f"{param}: {what}; leave it out", param=param)

    def effort(self, effort: str, param: str) -> dict[str, Any]:
        """Returns the variables of the chat template that set the reasoning effort.

        Raises:
            ApiError: The template cannot do it.
        """
        if self.knows_efforts:
            return {"reasoning_effort": effort}
        if effort == "none" or self.switches_reasoning:
            return self.thinking(on=effort != "none", param=param)
        raise ApiError(400, f"{param}: the model's chat template knows no efforts; leave it out", param=param)


def function_tool(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> FunctionTool:
    """Returns a function as a tool for the chat template."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def described(tool: Mapping[str, Any]) -> FunctionTool:
    """Returns the tool with a description and with properties, for templates that need them."""
    function = tool["function"]
    parameters = {"type": "object", "properties": {}} | (function.get("parameters") or {})
    return {**tool, "function": {"description": "", **function, "parameters": parameters}}


def check_ending(one: CompletionOutput) -> None:
    """Refuses an output whose finish reason the APIs cannot express.

    Raises:
        ApiError: The request timed out, was aborted by the server, or failed.
    """
    match one.finish_reason:
        case "timeout":
            raise ApiError(408, "timeout: the time of the request was over; give it more, or ask for fewer tokens")
        case "abort":
            raise ApiError(503, "the server has ended the request; try again", headers={"Retry-After": "1"})
        case "error":
            raise ApiError(500, one.error or "the request failed")


class Reader:
    """Parses one sequence.

    Args:
        reply_format: The reply format.
        tools: The tools that the model may call.
        prompt: The text of the prompt, which may begin the reasoning.
        parallel: True if there may be more than one call; otherwise calls after the first are dropped.
        keep: Called with each output and its events.
        stops: Stop strings that end the sequence if they occur in its answer.
    """

    def __init__(
        self,
        reply_format: ReplyFormat,
        tools: Sequence[FunctionTool],
        prompt: str,
        *,
        parallel: bool = True,
        keep: Callable[[CompletionOutput, list[Event]], None] | None = None,
        stops: AnswerStops | None = None,
    ) -> None:
        self._keep = keep
        self._parser = OutputParser(reply_format.chat, tools, prompt)
        self._parallel = parallel
        self.stops = stops
        self._finder = None if stops is None else StopFinder(stops)
        self.called = False
        """True if the sequence contained a call so far."""
        self.ended = False
        """True if the sequence has ended, by itself or by a stop string."""

    def read(self, one: CompletionOutput) -> list[Event]:
        """Returns the events in the next output of the sequence.

        A stop string in the answer ends the sequence and sets the finish reason of the output.
        """
        if self.ended:
            # The engine continues for other sequences of the request.
            one.text, one.token_ids, one.logprobs, one.finish_reason, one.stop_reason = "", [], None, None, None
            return []
        events = self._parser.feed(one.text)
        if one.finished():
            events += self._parser.finish()
        if self._finder is not None:
            events, stop = self._finder.find(events, one)
            if stop is not None:
                one.finish_reason, one.stop_reason = "stop", stop
        if self._keep is not None:
            self._keep(one, events)
        self.ended = one.finished()
        if not self._parallel:
            events = [event for event in events if not _is_later_call(event)]
        self.called = self.called or any(isinstance(event, ToolCallStart) for event in events)
        return events


def _is_later_call(event: Event) -> bool:
    return isinstance(event, ToolCallStart | ToolCallArguments) and event.index > 0
