"""A prompt of `llm` as a request of rocmforge, and its outputs as events of `llm`."""

import json
from collections.abc import Iterator
from typing import Any

import llm
from llm.parts import AttachmentPart, Part, ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field
from rocmforge import LLM, AsyncLLM, RequestOutput, StructuredOutputsParams
from rocmforge.parsing import (
    Content,
    Event,
    OutputParser,
    Reasoning,
    ReplyFormat,
    ToolCallArguments,
    ToolCallStart,
    gather,
)

DEFAULT_MAX_TOKENS = 1024


class SamplingOptions(llm.Model.Options):
    """Options of a prompt, by the names of `SamplingParams`; by default the recommendation of the model file."""

    max_tokens: int | None = Field(default=None, description=f"Maximum new tokens; by default {DEFAULT_MAX_TOKENS}.")
    temperature: float | None = Field(default=None, description="0 always takes the most likely token.")
    top_p: float | None = Field(default=None, description="Keeps the most likely tokens up to this probability.")
    top_k: int | None = Field(default=None, description="Keeps this number of the most likely tokens.")
    min_p: float | None = Field(default=None, description="Keeps tokens at least this likely, relative to the first.")
    repetition_penalty: float | None = Field(default=None, description="Above 1, repeated tokens are less likely.")
    presence_penalty: float | None = Field(default=None, description="Subtracted from logits of generated tokens.")
    frequency_penalty: float | None = Field(default=None, description="The same, times the number of occurrences.")
    seed: int | None = Field(default=None, description="The same seed gives the same text.")
    stop: str | None = Field(default=None, description="Text that ends the answer.")
    thinking: bool | None = Field(default=None, description="The variable enable_thinking of the chat template.")


class Chat:
    """The chat template of a loaded model, and the format of its answers.

    Args:
        engine: The model.
        template: Replaces the template in the model file.
    """

    def __init__(self, engine: LLM | AsyncLLM, template: str | None) -> None:
        self.replacement = template
        self.replies = ReplyFormat.of(engine.tokenizer, template)
        defaults = engine.get_default_sampling_params()
        skip = not self.replies.control_tokens
        self.params = defaults.replace(max_tokens=DEFAULT_MAX_TOKENS, output_kind="delta", skip_special_tokens=skip)


class Answer:
    """The answer to one prompt: the request for it, and the reader of its outputs."""

    def __init__(self, chat: Chat, prompt: llm.Prompt) -> None:
        given = prompt.options.model_dump(exclude_none=True)
        thinking = given.pop("thinking", None)
        if isinstance(prompt.schema, dict):
            begin = chat.replies.begin_token_id
            given["structured_outputs"] = StructuredOutputsParams(json=prompt.schema, begin_token_id=begin)
            # A template with the switch may start the reasoning itself, where JSON has to start.
            thinking = False if chat.replies.switches_reasoning else None
        self.messages = list(messages(prompt))
        self.params = chat.params.replace(**given)
        self.options: dict[str, Any] = {
            "tools": [tool_schema(tool) for tool in prompt.tools],
            "chat_template": chat.replacement,
            "chat_template_kwargs": None if thinking is None else {"enable_thinking": thinking},
        }
        self._format = chat.replies.chat
        self._parser: OutputParser | None = None
        self._events: list[Event] = []
        self._call_ids: list[str] = []
        self._num_tokens = 0

    def read(self, output: RequestOutput, response: llm.Response | llm.AsyncResponse) -> Iterator[StreamEvent]:
        """Yields the events of the next output; after the last one, completes the response."""
        if self._parser is None:
            self._parser = OutputParser(self._format, self.options["tools"], output.prompt or "")
        (new,) = output.outputs
        self._num_tokens += len(new.token_ids)
        events = self._parser.feed(new.text)
        if output.finished:
            events += self._parser.finish()
        self._events += events
        yield from map(self._event, events)
        if output.finished:
            cached = {"cached_tokens": output.num_cached_tokens} if output.num_cached_tokens else None
            response.set_usage(input=len(output.prompt_token_ids), output=self._num_tokens, details=cached)
            response.response_json = {"finish_reason": new.finish_reason, "stop_reason": new.stop_reason}
            for call in gather(self._events).tool_calls:
                response.add_tool_call(llm.ToolCall(call.name, arguments(call.name, call.arguments), call.id))

    def _event(self, event: Event) -> StreamEvent:
        match event:
            case Content(text):
                return StreamEvent("text", text)
            case Reasoning(text):
                return StreamEvent("reasoning", text)
            case ToolCallStart(_, call_id, name):
                self._call_ids.append(call_id)
                return StreamEvent("tool_call_name", name, tool_call_id=call_id)
            case ToolCallArguments(index, text):
                return StreamEvent("tool_call_args", text, tool_call_id=self._call_ids[index])


def arguments(name: str, text: str) -> dict[str, Any]:
    """Returns the arguments of a call."""
    try:
        return dict(json.loads(text))
    except ValueError as error:
        raise llm.ModelError(f"{name}: got a call that was cut off; set a larger option max_tokens") from error


def tool_schema(tool: llm.Tool | llm.ServerSideTool) -> dict[str, Any]:
    """Returns a tool as chat templates take it."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def messages(prompt: llm.Prompt) -> Iterator[dict[str, Any]]:
    """Yields the messages of a conversation as chat templates take them."""
    system = None
    for message in prompt.messages:
        if any(isinstance(part, AttachmentPart) for part in message.parts):
            raise llm.ModelError("attachments: got one, expected text; models of rocmforge take no attachments")
        text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
        if message.role == "tool":
            yield from map(tool_message, [part for part in message.parts if isinstance(part, ToolResultPart)])
        # Each turn of a conversation repeats the system prompt.
        elif message.role != "system" or text != system:
            system = text if message.role == "system" else system
            yield {"role": message.role, "content": text} | written(message.parts)


def tool_message(part: ToolResultPart) -> dict[str, Any]:
    """Returns the message with the result of a call."""
    return {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.name, "content": part.output}


def written(parts: list[Part]) -> dict[str, Any]:
    """Returns what a model wrote beside its text: reasoning and calls."""
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls = [
        {"id": part.tool_call_id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}
        for part in parts
        if isinstance(part, ToolCallPart)
    ]
    return ({"reasoning_content": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})
