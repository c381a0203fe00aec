"""A request of LangChain as one of rocmforge, and its outputs as chunks of LangChain."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from rocmforge import AsyncLLM, RequestOutput, StructuredOutputsParams
from rocmforge.parsing import (
    Content,
    Event,
    Markers,
    OutputParser,
    Reasoning,
    ReplyFormat,
    ToolCallArguments,
    ToolCallStart,
    call_grammar,
)


class Chat:
    """The chat template of a loaded model, and the format of its answers.

    Args:
        engine: The model.
        template: Replaces the template in the model file.
        variables: Further variables of the template.
    """

    def __init__(self, engine: AsyncLLM, template: str | None, variables: dict[str, Any]) -> None:
        self.replacement = template
        self.variables = variables
        self.replies = ReplyFormat.of(engine.tokenizer, template)
        self._markers = Markers(engine.tokenizer)
        defaults = engine.get_default_sampling_params()
        self.params = defaults.replace(output_kind="delta", skip_special_tokens=not self.replies.control_tokens)

    def forced_calls(self, tools: Sequence[dict[str, Any]], *, strict: bool, parallel: bool) -> StructuredOutputsParams:
        """Returns the restriction to calls of tools."""
        names = [tool["function"]["name"] for tool in tools] if strict else []
        chat, template = self.replies.chat, self.replies.template
        made = call_grammar(chat, template, tools, self._markers.grammar, strict=names, parallel=parallel)
        return StructuredOutputsParams(grammar=made.grammar, begin_token_id=self.replies.begin_token_id)


class Reader:
    """The parameters of one request, and the reader of its outputs.

    Args:
        chat: The model's chat template.
        model: The model's name.
        sampling: Fields of `SamplingParams`.
        tools: Tools in OpenAI's form.
        tool_choice: `none`, `any`, `required`, `True`, a tool's name; anything else leaves the choice to the model.
        strict: As for `ChatRocmForge.bind_tools`.
        parallel_tool_calls: As for `ChatRocmForge.bind_tools`.
        json_schema: The schema of the answer.
    """

    def __init__(
        self,
        chat: Chat,
        model: str,
        sampling: dict[str, Any],
        *,
        tools: Sequence[dict[str, Any]] = (),
        tool_choice: str | bool | None = None,
        strict: bool = False,
        parallel_tool_calls: bool = True,
        json_schema: dict[str, Any] | None = None,
    ) -> None:
        variables = chat.variables
        self._tools = [] if tool_choice == "none" else tools
        form = None
        if json_schema is not None:
            form = StructuredOutputsParams(json=json_schema, begin_token_id=chat.replies.begin_token_id)
        elif self._tools and tool_choice not in (None, False, "auto"):
            one = [tool for tool in tools if tool["function"]["name"] == tool_choice]
            form = chat.forced_calls(one or tools, strict=strict, parallel=parallel_tool_calls and not one)
        if form is not None and chat.replies.switches_reasoning:
            # A template with the switch may start the reasoning itself, where the form has to start.
            variables = variables | {"enable_thinking": False}
        self.params = chat.params.replace(**sampling, structured_outputs=form)
        self.options: dict[str, Any] = {
            "tools": self._tools,
            "chat_template": chat.replacement,
            "chat_template_kwargs": variables,
        }
        self._model = model
        self._format = chat.replies.chat
        self._parser: OutputParser | None = None
        self._num_tokens = 0

    def read(self, output: RequestOutput) -> Iterator[ChatGenerationChunk]:
        """Yields the chunks of the next output; the last chunk has the usage and the finish reason."""
        if self._parser is None:
            self._parser = OutputParser(self._format, self._tools, output.prompt or "")
        (new,) = output.outputs
        self._num_tokens += len(new.token_ids)
        events = self._parser.feed(new.text)
        if output.finished:
            events += self._parser.finish()
        for event in events:
            yield ChatGenerationChunk(message=chunk(event))
        if output.finished:
            last = AIMessageChunk(content="", usage_metadata=self._usage(output), chunk_position="last")
            last.response_metadata = {"finish_reason": new.finish_reason, "model_name": self._model}
            yield ChatGenerationChunk(message=last)

    def _usage(self, output: RequestOutput) -> UsageMetadata:
        prompt = len(output.prompt_token_ids)
        return UsageMetadata(
            input_tokens=prompt,
            output_tokens=self._num_tokens,
            total_tokens=prompt + self._num_tokens,
            input_token_details=InputTokenDetails(cache_read=output.num_cached_tokens),
        )


def chunk(event: Event) -> AIMessageChunk:
    """Returns a piece of an answer as LangChain has it."""
    match event:
        case Content(text):
            return AIMessageChunk(content=text)
        case Reasoning(text):
            return AIMessageChunk(content="", additional_kwargs={"reasoning_content": text})
        case ToolCallStart(index, call_id, name):
            return AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(name=name, id=call_id, index=index)])
        case ToolCallArguments(index, text):
            return AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(args=text, index=index)])


def messages_of(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Returns a conversation as chat templates take it: with arguments as objects, and with the reasoning."""
    made: list[dict[str, Any]] = []
    for message in messages:
        converted = convert_to_openai_messages(message, text_format="string")
        made += converted if isinstance(converted, list) else [converted]
        if isinstance(message, AIMessage):
            for call in made[-1].get("tool_calls", []):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            if reasoning := message.additional_kwargs.get("reasoning_content"):
                made[-1]["reasoning_content"] = reasoning
    return made
