"""`/v1/messages` and `/v1/messages/count_tokens`."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from typing import Any, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from rocmforge._rocmforge import SamplingParams
from rocmforge.outputs import CompletionOutput
from rocmforge.prompts import ChatOptions
from rocmforge.server.anthropic.blocks import (
    CacheControl,
    MessageParam,
    Texts,
    Tool,
    ToolChoice,
    template_messages,
)
from rocmforge.server.anthropic.content import BlockStream, whole_blocks
from rocmforge.server.anthropic.events import PING, Usage, ending
from rocmforge.server.anthropic.settings import ContextManagement, OutputConfig, Thinking
from rocmforge.server.bodies import Body
from rocmforge.server.errors import ApiError
from rocmforge.server.errors import body as error_body
from rocmforge.server.generation import Generations
from rocmforge.server.replies import ReplyFormat, function_tool
from rocmforge.server.requests import STREAM_MEANING, QueueBody, Served, recommended, sampling_params
from rocmforge.server.rules import ReplyRules, RuledPrompt, forced_call, ruled_prompt
from rocmforge.server.service import Service
from rocmforge.server.streaming import Submitted, named_event, respond

router = APIRouter(tags=["Anthropic"])


class Conversation(Body):
    """A conversation, as both endpoints take it."""

    model: str = Field(description="A name of `/v1/models`.")
    messages: list[MessageParam] = Field(min_length=1, description="The conversation, oldest message first.")
    system: Texts = Field(default_factory=list, description="The system prompt: a text, or text blocks.")
    cache_control: CacheControl | None = Field(None, description="All prefixes are cached; it has no effect.")
    tools: list[Tool] | None = Field(None, description="Tools that the model may call.")
    tool_choice: ToolChoice | None = Field(None, description="Whether it calls them, or has to.")
    thinking: Thinking | None = Field(None, description="Whether the model thinks, and how long.")
    output_config: OutputConfig | None = Field(
        None, description="`effort`: how much the model thinks; `format`: the form of the answer, a `json_schema`."
    )
    context_management: ContextManagement | None = Field(
        None, description="`clear_thinking_20251015` that keeps all thoughts, which is what happens without it."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        calls = self.tools and (self.tool_choice is None or self.tool_choice.type != "none")
        if self.output_config is not None and self.output_config.format is not None and calls:
            raise ValueError("an answer of a given form calls no tools: leave out one of the two")
        return self

    def rules(self, replies: ReplyFormat) -> ReplyRules:
        """The rules of the answer of a model that writes so."""
        output = self.output_config or OutputConfig()
        choice = self.tool_choice or ToolChoice(type="auto")
        tools = [] if choice.type == "none" else self.tools or []
        mode = {"any": "required", "tool": choice.name or ""}.get(choice.type, choice.type)
        return ReplyRules(
            tools=[function_tool(tool.name, tool.description, tool.input_schema) for tool in tools],
            forced=forced_call(mode, [tool.name for tool in tools]),
            strict=frozenset(tool.name for tool in tools if tool.strict),
            parallel=not choice.disable_parallel_tool_use,
            form=None if output.format is None else output.format.params(),
            form_param="output_config.format",
            thinking=None if self.thinking is None else self.thinking.told(),
            may_think=self.thinking is not None and self.thinking.type == "adaptive",
            effort=output.effort_of(replies),
            effort_param="output_config.effort",
            budget=None if self.thinking is None else self.thinking.budget_tokens,
            budget_param="thinking.budget_tokens",
        )

    def prompt(self, service: Service, params: SamplingParams) -> RuledPrompt:
        """Makes the prompt; a last message of the assistant's is gone on with."""
        goes_on = self.messages[-1].role == "assistant"
        options = ChatOptions(add_generation_prompt=not goes_on, continue_final_message=goes_on)
        rules, messages = self.rules(service.replies), template_messages(self.system, self.messages)
        return ruled_prompt(service, rules, messages, options, params)


class CountTokensRequest(Conversation):
    """The body of `/v1/messages/count_tokens`."""


class Metadata(Body):
    """Notes of a client about a request."""

    user_id: str | None = None


class MessagesRequest(Conversation, QueueBody):
    """The body of `/v1/messages`."""

    max_tokens: int = Field(ge=1, description="Most tokens of the answer.")
    temperature: float | None = recommended("temperature")
    top_p: float | None = recommended("top_p")
    top_k: int | None = recommended("top_k")
    stop_sequences: list[str] | None = Field(None, description="Texts that end the answer.")
    stream: bool = Field(default=False, description=STREAM_MEANING)
    metadata: Metadata | None = Field(None, description="For the client's own records; it has no effect.")

    def sampling(self, service: Service) -> SamplingParams:
        """The engine's parameters."""
        return sampling_params(
            service,
            self.max_tokens,
            stop_name="stop_sequences",
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            output_kind="delta" if self.stream else "final_only",
        )


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensRequest, models: Served) -> dict[str, int]:
    """The number of tokens that a conversation has."""
    service = await models.use(body.model)
    prompt = await asyncio.to_thread(body.prompt, service, SamplingParams())
    return {"input_tokens": len(prompt.token_ids)}


@router.post("/v1/messages")
async def create_message(body: MessagesRequest, request: Request, models: Served) -> Response:
    """Answers a conversation."""
    service = await models.use(body.model)
    answer = _Answer(body)
    submitted = answer.submit(request, service)
    return await respond(request, answer, submitted, stream=body.stream, ping=PING)


class _Answer:
    """Makes the answer to one request."""

    def __init__(self, body: MessagesRequest) -> None:
        self._body = body
        self._id = f"msg_{uuid.uuid4().hex}"
        self._usage = Usage()
        self._shows_thoughts = body.thinking is None or body.thinking.display != "omitted"

    async def submit(self, request: Request, service: Service) -> Generations:
        """Hands the request to the engine."""
        body = self._body
        prompt = await asyncio.to_thread(body.prompt, service, body.sampling(service))
        self._reader = prompt.reader(service)
        return await prompt.submit(service, body.call(request, self._id))

    async def whole(self, submitted: Submitted) -> Response:
        """Everything at once."""
        async with await submitted as generations:
            (output,) = await generations.final()
        self._usage.add(output)
        (one,) = output.outputs
        content = whole_blocks(self._reader.read(one), shows_thoughts=self._shows_thoughts)
        return JSONResponse(self._message(content, **self._ending(one)))

    async def pieces(self, path: str, generations: Generations) -> AsyncGenerator[bytes, None]:
        """Everything as it comes. The first event waits for the first token: it tells what the cache had."""
        blocks = BlockStream(shows_thoughts=self._shows_thoughts)
        begun = pinged = False
        try:
            async for _, output in generations.merged():
                self._usage.add(output)
                (one,) = output.outputs
                if not begun:
                    begun = True
                    message = self._message([], stop_reason=None, stop_sequence=None)
                    yield named_event({"type": "message_start", "message": message})
                for new in blocks.add(self._reader.read(one)):
                    yield named_event(new)
                    if not pinged:
                        pinged = True
                        yield PING
                if one.finished():
                    end = self._ending(one)
                    for new in blocks.finish():
                        yield named_event(new)
                    yield named_event({"type": "message_delta", "delta": end, "usage": self._usage.value()})
                    yield named_event({"type": "message_stop"})
        except ApiError as error:
            yield named_event(error_body(path, error))

    def _ending(self, one: CompletionOutput) -> dict[str, str | None]:
        return ending(one, whole=self._usage.generated >= self._body.max_tokens, called=self._reader.called)

    def _message(self, content: list[dict[str, Any]], **end: str | None) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._body.model}
        return head | {"content": content} | end | {"usage": self._usage.value()}
