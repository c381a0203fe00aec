"""`/v1/chat/completions`."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from rocmforge._rocmforge import StructuredOutputsParams, Tokenizer
from rocmforge.outputs import CompletionOutput
from rocmforge.parsing import Content, Event, Reasoning, ToolCallArguments, ToolCallStart, gather
from rocmforge.server.chats import ChatMessage, TemplateBody, template_messages
from rocmforge.server.errors import ApiError
from rocmforge.server.generation import Generations
from rocmforge.server.openai.events import DONE, Usage, chunk_head, error_event, finish_reason
from rocmforge.server.openai.logprobs import chat_logprobs
from rocmforge.server.openai.tool_choice import ChatToolChoice, allowed_calls, chosen
from rocmforge.server.requests import (
    MODEL_MEANING,
    STREAM_MEANING,
    STREAM_OPTIONS_MEANING,
    GenerationBody,
    Served,
    StreamOptions,
    check_limit,
)
from rocmforge.server.rules import ReplyRules, forced_call, ruled_prompt
from rocmforge.server.service import Service
from rocmforge.server.streaming import Submitted, event, respond
from rocmforge.server.structured import ResponseFormat

router = APIRouter(tags=["OpenAI"])


class ChatCompletionRequest(GenerationBody, TemplateBody):
    """The body of `/v1/chat/completions`."""

    model: str | None = Field(None, description=MODEL_MEANING)
    messages: list[ChatMessage] = Field(min_length=1, description="The conversation, oldest message first.")
    max_tokens: int | None = Field(None, ge=1, description="Most tokens of each answer; by default what has room.")
    max_completion_tokens: int | None = Field(None, ge=1, description="The same by OpenAI's newer name.")
    logprobs: bool = Field(default=False, description="Whether the log-probability of each token is reported.")
    top_logprobs: int = Field(0, ge=0, description="Most likely tokens to report beside each token.")
    response_format: ResponseFormat | None = Field(
        None, description="The form of the answer: `text`, `json_object`, or `json_schema` with a `schema`."
    )
    tool_choice: ChatToolChoice = Field(
        "auto",
        description="Whether it calls them; `required` and a tool's name: it has to; `allowed_tools`: only some.",
    )
    parallel_tool_calls: bool = Field(default=True, description="Whether there may be more than one call.")
    reasoning_effort: str | None = Field(
        None, description="How much the model thinks, where its chat template can tell it; `none` turns it off."
    )
    thinking_token_budget: int | None = Field(
        None, ge=0, description="Tokens of thoughts at most; then the answer begins."
    )
    stream: bool = Field(default=False, description=STREAM_MEANING)
    stream_options: StreamOptions | None = Field(None, description=STREAM_OPTIONS_MEANING)
    metadata: dict[str, str] | None = Field(None, description="For the client's own records; it has no effect.")
    store: Literal[False] = Field(default=False, description="Answers of chats are not kept.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are the same: give one of them")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        if self.response_format is not None and self.structured_outputs is not None:
            raise ValueError("response_format and structured_outputs both give the form: give one of them")
        any_text = self.response_format is None or self.response_format.type == "text"
        if not (any_text and self.structured_outputs is None) and self.tools and self.tool_choice != "none":
            raise ValueError("an answer of a given form calls no tools: leave out one of the two")
        return self

    def rules(self) -> ReplyRules:
        """The rules of the answer."""
        choice, allowed = chosen(self.tool_choice)
        functions = [each.function for each in self.tools or () if choice != "none"]
        names = [each.name for each in functions]
        return ReplyRules(
            tools=[each.described() for each in functions],
            forced=forced_call(choice, names),
            allowed=allowed_calls(allowed, names),
            strict=frozenset(each.name for each in functions if each.strict),
            parallel=self.parallel_tool_calls,
            form=self._form(),
            form_param="structured_outputs" if self.structured_outputs is not None else "response_format",
            effort=self.reasoning_effort,
            effort_param="reasoning_effort",
            budget=self.thinking_token_budget,
            budget_param="thinking_token_budget",
        )

    def _form(self) -> StructuredOutputsParams | None:
        if self.structured_outputs is not None:
            return self.structured_outputs.params()
        return None if self.response_format is None else self.response_format.params()


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatCompletionRequest, request: Request, models: Served) -> Response:
    """Answers a conversation."""
    service = await models.use(body.model)
    check_limit("top_logprobs", body.top_logprobs, service.config.max_logprobs, "max_logprobs")
    answer = _Answer(body, body.model or service.names[0], service.engine.tokenizer)
    submitted = answer.submit(request, service)
    return await respond(request, answer, submitted, stream=body.stream)


class _Answer:
    """Makes the answer to one request."""

    def __init__(self, body: ChatCompletionRequest, model: str, tokenizer: Tokenizer) -> None:
        self._body = body
        self._model = model
        self._tokenizer = tokenizer
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._usage = Usage()

    async def submit(self, request: Request, service: Service) -> Generations:
        """Hands the request to the engine."""
        body = self._body
        params = body.sampling(
            service,
            max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            logprobs=body.top_logprobs if body.logprobs else None,
            output_kind="delta" if body.stream else "final_only",
        )
        rules = body.rules()
        messages, options = template_messages(body.messages), body.template_options()
        # A long conversation takes milliseconds to render and to tokenise, which other streams should not wait for.
        prompt = await asyncio.to_thread(ruled_prompt, service, rules, messages, options, params)
        self._readers = [prompt.reader(service) for _ in range(body.n)]
        return await prompt.submit(service, body.call(request, self._id))

    async def whole(self, submitted: Submitted) -> Response:
        """Everything at once."""
        async with await submitted as generations:
            (output,) = await generations.final()
        self._usage.add(output)
        choices = [
            {
                "index": one.index,
                "message": _message(self._readers[one.index].read(one)),
                "logprobs": self._logprobs(one),
                "finish_reason": self._finish_reason(one),
                "stop_reason": one.stop_reason,
            }
            for one in output.outputs
        ]
        head = chunk_head(self._id, "chat.completion", self._model)
        return JSONResponse(head | {"choices": choices, "usage": self._usage.value()})

    async def pieces(self, path: str, generations: Generations) -> AsyncGenerator[bytes, None]:
        """Everything as it comes."""
        options = self._body.stream_options or StreamOptions()
        head = chunk_head(self._id, "chat.completion.chunk", self._model)
        for index in range(self._body.n):
            yield event(head | {"choices": [_choice(index, {"role": "assistant", "content": ""})]})
        try:
            async for _, output in generations.merged():
                self._usage.add(output)
                usage = {"usage": self._usage.value()} if options.continuous_usage_stats else {}
                for one in output.outputs:
                    delta = _delta(self._readers[one.index].read(one))
                    logprobs, reason = self._logprobs(one), self._finish_reason(one)
                    # Text that may be the beginning of a call is told when it is known what it is.
                    if delta or logprobs is not None or reason is not None or usage:
                        choice = _choice(one.index, delta, logprobs, reason, one.stop_reason)
                        yield event(head | {"choices": [choice]} | usage)
        except ApiError as error:
            yield error_event(path, error)
            return
        if options.include_usage:
            yield event(head | {"choices": [], "usage": self._usage.value()})
        yield DONE

    def _finish_reason(self, one: CompletionOutput) -> str | None:
        reason = finish_reason(one)
        return "tool_calls" if reason == "stop" and self._readers[one.index].called else reason

    def _logprobs(self, one: CompletionOutput) -> dict[str, Any] | None:
        if one.logprobs is None:
            return None
        return chat_logprobs(one.logprobs, self._tokenizer, self._body.top_logprobs)


def _message(events: Sequence[Event]) -> dict[str, Any]:
    """The message of a whole answer."""
    found = gather(events)
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in found.tool_calls
    ]
    # An answer of nothing is an empty one; only a message that calls has none.
    content = found.content if calls else found.content or ""
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if found.reasoning_content is not None:
        message["reasoning_content"] = found.reasoning_content
    return message | {"tool_calls": calls} if calls else message


def _delta(events: Sequence[Event]) -> dict[str, Any]:
    """The news of an answer in one object."""
    delta: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for new in events:
        match new:
            case Content(text):
                delta["content"] = delta.get("content", "") + text
            case Reasoning(text):
                delta["reasoning_content"] = delta.get("reasoning_content", "") + text
            case ToolCallStart(index, id_, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": id_, "type": "function", "function": function}
            case ToolCallArguments(index, text):
                calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                calls[index]["function"]["arguments"] += text
    return delta | {"tool_calls": list(calls.values())} if calls else delta


def _choice(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    reason: str | None = None,
    stop_reason: int | str | None = None,
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return choice if reason is None else choice | {"stop_reason": stop_reason}
