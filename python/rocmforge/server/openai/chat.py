"""`/v1/chat/completions`."""

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from rocmforge._rocmforge import StructuredOutputsParams, Tokenizer
from rocmforge.executors import to_thread
from rocmforge.outputs import CompletionOutput
from rocmforge.parsing import Content, Event, Reasoning, ToolCallArguments, ToolCallStart, gather
from rocmforge.server.answers.generation import Generations
from rocmforge.server.bodies import JsonObject
from rocmforge.server.chat.chats import ChatMessage, Function, TemplateBody, add_function, template_messages
from rocmforge.server.chat.rules import ReplyRules, RuledPrompt, ruled_prompt
from rocmforge.server.chat.structured import ResponseFormat
from rocmforge.server.chat.toolset import ToolSet
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import Submitted, event, respond
from rocmforge.server.ignored import CACHED, MODERATION, NOT_KEPT, RECORDS, TIER, VERBOSITY
from rocmforge.server.openai.events import DONE, ReasoningTokens, Usage, chunk_head, error_event, finish_reason
from rocmforge.server.openai.logprobs import chat_logprobs
from rocmforge.server.openai.tool_choice import ChatToolChoice, FunctionName, chosen, tool_rules
from rocmforge.server.requests import (
    CACHE_OPTIONS_MEANING,
    STREAM_MEANING,
    STREAM_OPTIONS_MEANING,
    CacheOptions,
    GenerationBody,
    ModelBody,
    Served,
    StreamOptions,
    check_limit,
)
from rocmforge.server.service import Service

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute)


class ChatCompletionRequest(GenerationBody, TemplateBody, ModelBody):
    """The body of `/v1/chat/completions`."""

    ignored: ClassVar[Mapping[str, str]] = {
        **GenerationBody.ignored,
        "metadata": RECORDS,
        "moderation": MODERATION,
        "prediction": "It predicts the answer, and does not change it.",
        "prompt_cache_key": CACHED,
        "prompt_cache_retention": CACHED,
        "safety_identifier": RECORDS,
        "service_tier": TIER,
        "store": NOT_KEPT,
        "verbosity": VERBOSITY,
    }

    messages: list[ChatMessage] = Field(min_length=1, description="The conversation, oldest message first.")
    max_tokens: int | None = Field(None, ge=1, description="Maximum tokens of each answer; by default as many as fit.")
    max_completion_tokens: int | None = Field(None, ge=1, description="The same by OpenAI's newer name.")
    logprobs: bool = Field(default=False, description="If true, reports the log-probability of each token.")
    top_logprobs: int = Field(0, ge=0, description="Number of most likely tokens to report for each token.")
    response_format: ResponseFormat | None = Field(
        None, description="The format of the answer: `text`, `json_object`, or `json_schema` with a `schema`."
    )
    tool_choice: ChatToolChoice = Field(
        "auto",
        description="`required` or a tool's name forces a call; `allowed_tools` restricts the tools.",
    )
    parallel_tool_calls: bool = Field(default=True, description="If true, allows more than one call.")
    reasoning_effort: str | None = Field(
        None, description="Reasoning effort, if the chat template supports it; `none` turns reasoning off."
    )
    thinking_token_budget: int | None = Field(
        None, ge=0, description="Maximum reasoning tokens; then the answer begins."
    )
    stream: bool = Field(default=False, description=STREAM_MEANING)
    stream_options: StreamOptions | None = Field(None, description=STREAM_OPTIONS_MEANING)
    prompt_cache_options: CacheOptions | None = Field(None, description=CACHE_OPTIONS_MEANING)
    web_search_options: JsonObject | None = Field(None, description="There is no web search; the header says so.")
    modalities: list[Literal["text"]] | None = Field(None, description="Answers are text.")
    functions: list[Function] | None = Field(None, description="Tools in OpenAI's older format; one call at most.")
    function_call: Literal["auto", "none"] | FunctionName | None = Field(
        None, description="The choice among `functions`, like `tool_choice`."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are the same: give one of them")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        if self.response_format is not None and self.structured_outputs is not None:
            raise ValueError("response_format and structured_outputs constrain the answer: give one of them")
        if self.functions is not None and self.tools is not None:
            raise ValueError("functions and tools are the same: give one of them")
        if self.function_call is not None and self.functions is None:
            raise ValueError("function_call needs functions")
        return self

    def toolset(self) -> ToolSet:
        """Returns the tools as the model sees them."""
        made = super().toolset()
        for function in self.functions or ():
            add_function(made, function)
        if self.web_search_options is not None:
            made.leave_out("web_search")
        return made

    def rules(self, tools: ToolSet) -> ReplyRules:
        """Returns the rules of the answer."""
        choice, allowed = self._choice(tools)
        return replace(
            tool_rules(choice, allowed, tools),
            parallel=self.parallel_tool_calls and self.functions is None,
            constraint=self._constraint(),
            constraint_param="structured_outputs" if self.structured_outputs is not None else "response_format",
            effort=self.reasoning_effort,
            effort_param="reasoning_effort",
            budget=self.thinking_token_budget,
            budget_param="thinking_token_budget",
        )

    def _choice(self, tools: ToolSet) -> tuple[str, frozenset[str] | None]:
        if self.functions is None:
            return chosen(self.tool_choice, tools)
        choice = self.function_call or "auto"
        return choice if isinstance(choice, str) else choice.name, None

    def _constraint(self) -> StructuredOutputsParams | None:
        if self.structured_outputs is not None:
            return self.structured_outputs.params()
        return None if self.response_format is None else self.response_format.params()


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatCompletionRequest, request: Request, models: Served) -> Response:
    """Answers a conversation."""
    name = body.model_name(models.registry)
    service = await models.use(name)
    check_limit("top_logprobs", body.top_logprobs, service.config.max_logprobs, "max_logprobs")
    answer = _Answer(body, name or service.names[0], service.engine.tokenizer)
    submitted = answer.submit(request, service)
    response = await respond(request, answer, submitted, stream=body.stream)
    response.headers.update(answer.tools.headers())
    return response


class _Answer:
    """Builds the answer to one request."""

    def __init__(self, body: ChatCompletionRequest, model: str, tokenizer: Tokenizer) -> None:
        self._body = body
        self._model = model
        self._tokenizer = tokenizer
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._usage = Usage()
        self._reasoning = ReasoningTokens(tokenizer)
        self._custom: dict[tuple[int, int], bool] = {}
        self.tools = body.toolset()

    async def submit(self, request: Request, service: Service) -> Generations:
        """Submits the request to the engine."""
        body = self._body
        params = body.sampling(
            service,
            max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            logprobs=body.top_logprobs if body.logprobs else None,
            output_kind="delta" if body.stream else "final_only",
        )
        rules, options = body.rules(self.tools), body.template_options()
        call = body.call(request, self._id)

        def make() -> RuledPrompt:
            return ruled_prompt(service, rules, template_messages(body.messages), options, params, call)

        # A long conversation takes milliseconds to render and to tokenise, which other streams should not wait for.
        prompt = await to_thread(make)
        self._readers = [self.tools.reader(prompt.reader(service)) for _ in range(body.n)]
        return await prompt.submit(service, call)

    async def whole(self, submitted: Submitted) -> Response:
        """Returns the complete answer."""
        async with await submitted as generations:
            (output,) = await generations.final()
        self._usage.add(output)
        choices = [
            {
                "index": one.index,
                "message": self._message(self._events(one)),
                "logprobs": self._logprobs(one),
                "finish_reason": self._finish_reason(one),
                "stop_reason": one.stop_reason,
            }
            for one in output.outputs
        ]
        head = chunk_head(self._id, "chat.completion", self._model)
        return JSONResponse(head | {"choices": choices, "usage": self._counts()})

    async def pieces(self, path: str, generations: Generations) -> AsyncGenerator[bytes, None]:
        """Yields the answer as it comes."""
        options = self._body.stream_options or StreamOptions()
        head = chunk_head(self._id, "chat.completion.chunk", self._model)
        # OpenAI's chunks before the one with the counts have `usage: null`.
        empty = {"usage": None} if options.include_usage else {}
        for index in range(self._body.n):
            yield event(head | {"choices": [_choice(index, {"role": "assistant", "content": ""})]} | empty)
        try:
            async for _, output in generations.merged():
                self._usage.add(output)
                for one in output.outputs:
                    delta = self._delta(one.index, self._events(one))
                    logprobs, reason = self._logprobs(one), self._finish_reason(one)
                    usage = {"usage": self._usage.value()} if options.continuous_usage_stats else empty
                    # Text that may begin a call is sent once it is known to be text or a call.
                    if delta or logprobs is not None or reason is not None or options.continuous_usage_stats:
                        choice = _choice(one.index, delta, logprobs, reason, one.stop_reason)
                        yield event(head | {"choices": [choice]} | usage)
        except ApiError as error:
            yield error_event(path, error)
            return
        if options.include_usage:
            yield event(head | {"choices": [], "usage": self._counts()})
        yield DONE

    def _events(self, one: CompletionOutput) -> list[Event]:
        events = self._readers[one.index].read(one)
        self._reasoning.add(one.index, events)
        return events

    def _counts(self) -> dict[str, Any]:
        return self._usage.value() | {"completion_tokens_details": {"reasoning_tokens": self._reasoning.num_tokens()}}

    def _finish_reason(self, one: CompletionOutput) -> str | None:
        reason = finish_reason(one)
        if reason == "stop" and self._readers[one.index].called:
            return "tool_calls" if self._body.functions is None else "function_call"
        return reason

    def _message(self, events: Sequence[Event]) -> dict[str, Any]:
        """Returns the message of a whole answer."""
        found = gather(events)
        calls = [self._call(call.id, call.name, call.arguments) for call in found.tool_calls]
        # An empty answer is an empty string; only a message with calls has no content.
        content = found.content if calls else found.content or ""
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if found.reasoning_content is not None:
            message |= _reasoning(found.reasoning_content)
        if calls and self._body.functions is not None:
            return message | {"function_call": calls[0]["function"]}
        return message | {"tool_calls": calls} if calls else message

    def _delta(self, choice: int, events: Sequence[Event]) -> dict[str, Any]:
        """Returns the new parts of an answer as one object."""
        texts: dict[type[Event], str] = {}
        calls: dict[int, dict[str, Any]] = {}
        for new in events:
            match new:
                case Content(text) | Reasoning(text):
                    texts[type(new)] = texts.get(type(new), "") + text
                case ToolCallStart(index, id_, name):
                    calls[index] = {"index": index} | self._call(id_, name, "")
                    self._custom[choice, index] = self.tools.origin(name).is_custom
                case ToolCallArguments(index, text):
                    kind, argument = ("custom", "input") if self._custom[choice, index] else ("function", "arguments")
                    calls.setdefault(index, {"index": index, kind: {argument: ""}})
                    calls[index][kind][argument] += text
        delta: dict[str, Any] = {"content": texts[Content]} if Content in texts else {}
        if Reasoning in texts:
            delta |= _reasoning(texts[Reasoning])
        if calls and self._body.functions is not None:
            return delta | {"function_call": calls[0]["function"]}
        return delta | {"tool_calls": list(calls.values())} if calls else delta

    def _call(self, id_: str, name: str, arguments: str) -> dict[str, Any]:
        """Returns a call in the format of its tool."""
        if self.tools.origin(name).is_custom:
            return {"id": id_, "type": "custom", "custom": {"name": name, "input": arguments}}
        return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _logprobs(self, one: CompletionOutput) -> dict[str, Any] | None:
        if one.logprobs is None:
            return None
        return chat_logprobs(one.logprobs, self._tokenizer, self._body.top_logprobs)


def _reasoning(text: str) -> dict[str, Any]:
    """Returns reasoning under both names that clients read."""
    return {"reasoning_content": text, "reasoning": text}


def _choice(
    index: int,
    delta: dict[str, Any],
    logprobs: dict[str, Any] | None = None,
    reason: str | None = None,
    stop_reason: int | str | None = None,
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return choice if reason is None else choice | {"stop_reason": stop_reason}
