"""`/v1/messages` and `/v1/messages/count_tokens`."""

import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from rocmforge._rocmforge import SamplingParams
from rocmforge.executors import to_thread
from rocmforge.outputs import CompletionOutput, RequestOutput
from rocmforge.prompts import ChatOptions
from rocmforge.server.answers.generation import Call, Generations
from rocmforge.server.answers.replies import ServedFormat
from rocmforge.server.anthropic.blocks import CACHED, Texts
from rocmforge.server.anthropic.content import BlockStream, whole_blocks
from rocmforge.server.anthropic.conversation import MessageParam, template_messages, turn_effort
from rocmforge.server.anthropic.diagnostics import Diagnostics, Fingerprint, Remembered
from rocmforge.server.anthropic.events import PING, Usage, ending
from rocmforge.server.anthropic.names import served_name
from rocmforge.server.anthropic.settings import Container, ContextManagement, OutputConfig, Thinking, told_effort
from rocmforge.server.anthropic.tools import AnyTool, ToolChoice, callable_tools, left_out
from rocmforge.server.bodies import Body, JsonObject
from rocmforge.server.chat.rules import ReplyRules, RuledPrompt, forced_call, ruled_prompt
from rocmforge.server.errors import ApiError
from rocmforge.server.errors import body as error_body
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import Submitted, named_event, respond, unless_gone
from rocmforge.server.ignored import RECORDS, TIER
from rocmforge.server.requests import STREAM_MEANING, QueueBody, Served, recommended, sampling_params
from rocmforge.server.service import Service

router = APIRouter(tags=["Anthropic"], route_class=BodyRoute)


class Conversation(Body):
    """A conversation, as both endpoints take it."""

    ignored: ClassVar[Mapping[str, str]] = CACHED | {
        "betas": "Every beta feature is available without it.",
        "billing_policy": "Nothing is billed.",
        "fallback_credit_token": "Nothing is billed.",
        "fallbacks": "No request is passed to another model.",
        "inference_geo": "The answer is made where the server is.",
        "metadata": RECORDS,
        "service_tier": TIER,
        "speed": TIER,
    }
    model: str = Field(description="A name of `/v1/models`, or [a Claude model's name](#coding-agents).")
    messages: list[MessageParam] = Field(min_length=1, description="The conversation, oldest message first.")
    system: Texts = Field(default_factory=list, description="The system prompt: a text, or text blocks.")
    tools: list[AnyTool] | None = Field(None, description="Tools that the model may call.")
    tool_choice: ToolChoice | None = Field(None, description="How the model may or must call tools.")
    thinking: Thinking | None = Field(None, description="Turns reasoning on or off, and limits it.")
    output_config: OutputConfig | None = Field(
        None, description="`effort`: how much the model thinks; `format`: the format of the answer, a `json_schema`."
    )
    context_management: ContextManagement | None = Field(
        None, description="Conversations are kept whole; the answer says that no edit was applied."
    )
    container: str | Container | None = Field(None, description="No tool runs code in it; skills are an error.")
    mcp_servers: list[JsonObject] = Field(default_factory=list, description="The server calls none; must be empty.")
    thread: JsonObject | None = Field(
        None, description="An error, since the server keeps no conversations; Anthropic's clients continue without it."
    )
    diagnostics: Diagnostics | None = Field(
        None, description="`previous_message_id`: the answer says why the prefix cache missed that prompt."
    )

    @model_validator(mode="after")
    def _no_mcp_servers(self) -> Self:
        if self.mcp_servers:
            raise ValueError("no mcp_servers: this server calls none; give their tools as tools of your own")
        return self

    def _check_thread(self) -> None:
        """Refuses to keep a conversation, by the message after which Anthropic's own clients continue without.

        Raises:
            ApiError: It is asked for.
        """
        if self.thread is not None:
            raise ApiError(
                400,
                "thread: this server keeps no conversations; leave it out, and send all messages",
                param="thread",
                details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
            )

    def rules(self, replies: ServedFormat) -> ReplyRules:
        """The rules of the answer of a model that writes so."""
        output = self.output_config or OutputConfig()
        choice = self.tool_choice or ToolChoice(type="auto")
        tools = [] if choice.type == "none" else callable_tools(self.tools or [])
        mode = {"any": "required", "tool": choice.name or ""}.get(choice.type, choice.type)
        return ReplyRules(
            tools=[tool.described() for tool in tools],
            forced=forced_call(mode, [tool.name for tool in tools]),
            strict=frozenset(tool.name for tool in tools if tool.strict),
            parallel=not choice.disable_parallel_tool_use,
            constraint=None if output.format is None else output.format.params(),
            constraint_param="output_config.format",
            thinking=None if self.thinking is None else self.thinking.told(),
            may_think=self.thinking is not None and self.thinking.as_it_likes,
            effort=told_effort(turn_effort(self.messages) or output.effort, replies),
            effort_param="output_config.effort",
            budget=None if self.thinking is None else self.thinking.budget_tokens,
            budget_param="thinking.budget_tokens",
        )

    def prompt(self, service: Service, params: SamplingParams, call: Call) -> tuple[RuledPrompt, Fingerprint | None]:
        """Makes the prompt, which continues a last message of the assistant.

        Returns:
            The prompt, and its fingerprint if the client wants diagnostics.
        """
        self._check_thread()
        goes_on = self.messages[-1].role == "assistant"
        options = ChatOptions(add_generation_prompt=not goes_on, continue_final_message=goes_on)
        rules, messages = self.rules(service.replies), template_messages(self.system, self.messages)
        made = None if self.diagnostics is None else Fingerprint.of(service.names[0], rules.tools, messages)
        return ruled_prompt(service, rules, messages, options, params, call), made


class CountTokensRequest(Conversation):
    """The body of `/v1/messages/count_tokens`."""


class MessagesRequest(Conversation, QueueBody):
    """The body of `/v1/messages`."""

    max_tokens: int = Field(ge=1, description="Maximum tokens of the answer.")
    temperature: float | None = recommended("temperature")
    top_p: float | None = recommended("top_p")
    top_k: int | None = recommended("top_k")
    stop_sequences: list[str] | None = Field(None, description="Texts that end the answer.")
    stream: bool = Field(default=False, description=STREAM_MEANING)

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
async def count_tokens(body: CountTokensRequest, request: Request, models: Served) -> dict[str, Any]:
    """The number of tokens that a conversation has."""
    service = await models.use(served_name(models.registry, body.model))
    call = Call(request.state.client, "count_tokens")
    prompt, _ = await unless_gone(request, to_thread(body.prompt, service, SamplingParams(), call))
    count = prompt.num_tokens
    edited = {} if body.context_management is None else {"context_management": {"original_input_tokens": count}}
    return {"input_tokens": count} | edited


@router.post("/v1/messages")
async def create_message(body: MessagesRequest, request: Request, models: Served) -> Response:
    """Answers a conversation."""
    name = served_name(models.registry, body.model)
    service = await models.use(name)
    answer = _Answer(body, request, name)
    submitted = answer.submit(service)
    response = await respond(request, answer, submitted, stream=body.stream, ping=PING)
    response.headers.update(left_out(body.tools or ()))
    return response


class _Answer:
    """Builds the answer to one request."""

    def __init__(self, body: MessagesRequest, request: Request, model: str) -> None:
        self._body = body
        self._model = model
        self._request = request
        self._id = f"msg_{uuid.uuid4().hex}"
        self._usage = Usage()
        self._shows_reasoning = body.thinking is None or body.thinking.display != "omitted"
        self._diagnostics: dict[str, Any] | None = None

    async def submit(self, service: Service) -> Generations:
        """Submits the request to the engine."""
        body = self._body
        self._service = service
        call = body.call(self._request, self._id)
        prompt, self._made_of = await to_thread(body.prompt, service, body.sampling(service), call)
        self._reader = prompt.reader(service)
        return await prompt.submit(service, call)

    async def whole(self, submitted: Submitted) -> Response:
        """Returns the complete answer."""
        async with await submitted as generations:
            (output,) = await generations.final()
        self._begin(output)
        (one,) = output.outputs
        events = self._reader.read(one)
        self._usage.add(output, events)
        content = whole_blocks(events, shows_reasoning=self._shows_reasoning)
        return JSONResponse(self._message(content, await self._usage_at_end(), **self._ending(one)))

    async def pieces(self, path: str, generations: Generations) -> AsyncGenerator[bytes, None]:
        """Yields the answer as it comes. The first event waits for the first token, since it has the cached tokens."""
        blocks = BlockStream(shows_reasoning=self._shows_reasoning)
        begun = pinged = False
        try:
            async for _, output in generations.merged():
                (one,) = output.outputs
                events = self._reader.read(one)
                self._usage.add(output, events)
                if not begun:
                    begun = True
                    self._begin(output)
                    message = self._message([], self._usage.value(), stop_reason=None, stop_sequence=None)
                    yield named_event({"type": "message_start", "message": message})
                for new in blocks.add(events):
                    yield named_event(new)
                    if not pinged:
                        pinged = True
                        yield PING
                if one.finished():
                    end = self._ending(one)
                    for new in blocks.finish():
                        yield named_event(new)
                    told = {"delta": end, "usage": await self._usage_at_end()} | self._edits()
                    yield named_event({"type": "message_delta"} | told)
                    yield named_event({"type": "message_stop"})
        except ApiError as error:
            yield named_event(error_body(path, error))

    def _begin(self, output: RequestOutput) -> None:
        """Compares the prompt with the earlier one, once the cached tokens are known."""
        asked, made_of = self._body.diagnostics, self._made_of
        if asked is None or made_of is None:
            return
        remembered: Remembered = self._request.app.state.messages
        client = self._request.state.client
        block_size = self._service.engine.config()["block_size"]
        self._diagnostics = remembered.value(client, asked, made_of, output, block_size)
        remembered.add(client, self._id, made_of, len(output.prompt_token_ids))

    async def _usage_at_end(self) -> dict[str, Any]:
        return await to_thread(self._usage.value_at_end, self._service.engine.tokenizer)

    def _edits(self) -> dict[str, Any]:
        return {} if self._body.context_management is None else {"context_management": {"applied_edits": []}}

    def _ending(self, one: CompletionOutput) -> dict[str, str | None]:
        return ending(one, whole=self._usage.generated >= self._body.max_tokens, called=self._reader.called)

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any], **end: str | None) -> dict[str, Any]:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model}
        told = {} if self._body.diagnostics is None else {"diagnostics": self._diagnostics}
        return head | {"content": content} | end | {"usage": usage} | told | self._edits()
