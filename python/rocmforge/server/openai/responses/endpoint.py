"""`/v1/responses`."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from rocmforge._rocmforge import Tokenizer
from rocmforge.executors import to_thread
from rocmforge.outputs import CompletionOutput
from rocmforge.parsing import Event
from rocmforge.server.answers.generation import Generations
from rocmforge.server.answers.replies import check_ending
from rocmforge.server.chat.rules import RuledPrompt
from rocmforge.server.chat.toolset import ToolSet
from rocmforge.server.errors import ApiError
from rocmforge.server.errors import body as error_body
from rocmforge.server.http.query import known_query
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import Submitted, named_event, respond
from rocmforge.server.openai.events import ReasoningTokens, Usage, response_usage
from rocmforge.server.openai.logprobs import AnswerLogprobs
from rocmforge.server.openai.responses.body import ResponsesRequest
from rocmforge.server.openai.responses.conversation import fitting_prompt, said, template_messages
from rocmforge.server.openai.responses.output import OutputItems
from rocmforge.server.openai.responses.stored import ResponseStore, Stored, StoredResponse
from rocmforge.server.requests import Served
from rocmforge.server.service import Service

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute, dependencies=[Depends(known_query)])

# Seconds for the stream of a cancelled answer to end.
_END_SECONDS = 5.0


@router.post("/v1/responses")
async def create_response(body: ResponsesRequest, request: Request, models: Served, store: Stored) -> Response:
    """Answers a text or a conversation, and keeps the answer."""
    name = body.model_name(models.registry)
    service = await models.use(name)
    answer = _Answer(body, name or service.names[0], service.engine.tokenizer, store)
    response = await respond(request, answer, answer.submit(request, service), stream=body.stream)
    response.headers.update(answer.tools.headers())
    return response


class _Answer:
    """Builds the answer to one request."""

    def __init__(self, body: ResponsesRequest, model: str, tokenizer: Tokenizer, store: ResponseStore) -> None:
        self._body = body
        self._model = model
        self._tokenizer = tokenizer
        self._store = store
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._usage = Usage()
        self._reasoning = ReasoningTokens(tokenizer)
        self.tools = ToolSet()
        self._logprobs: AnswerLogprobs | None = None
        self._is_cancelled = False
        self._ended = asyncio.Event()

    async def submit(self, request: Request, service: Service) -> Generations:
        """Submits the request to the engine."""
        body = self._body
        self._client, self._engine = request.state.client, service.engine
        self._said = said(body, self._store, self._client)
        params, call = body.sampling(service), body.call(request, self._id)

        def make() -> RuledPrompt:
            items = self._said.items
            self.tools = body.toolset(items)
            rules, num_before = body.rules(self.tools, items), len(self._said.before)
            messages = template_messages(body.instructions, items, self.tools, num_before)
            return fitting_prompt(service, rules, messages, params, call, cuts=body.truncation == "auto")

        prompt = await to_thread(make)
        self._reader, self._params = self.tools.reader(prompt.reader(service)), prompt.params
        if body.reports_logprobs:
            skips = prompt.params.skip_special_tokens
            self._logprobs = AnswerLogprobs(self._tokenizer, body.top_logprobs, skip_special=skips)
        seals = "reasoning.encrypted_content" in (body.include or ())
        self._output = OutputItems(self.tools, seals_reasoning=seals, logprobs=self._logprobs)
        return await prompt.submit(service, call)

    async def whole(self, submitted: Submitted) -> Response:
        """Returns the complete answer."""
        async with await submitted as generations:
            (output,) = await generations.final()
        self._usage.add(output)
        (one,) = output.outputs
        for _ in self._output.add(self._events(one)):
            pass
        status = _status(one)
        for _ in self._output.finish(status):
            pass
        return JSONResponse(self._finished(status))

    async def pieces(self, path: str, generations: Generations) -> AsyncGenerator[bytes, None]:
        """Yields the answer as it comes, each event with its number."""
        number = 0

        def event(value: dict[str, Any]) -> bytes:
            nonlocal number
            number += 1
            return named_event(value | {"sequence_number": number - 1})

        self._store.begin(self._client, self._id, self)
        try:
            async for told in self._told(path, generations):
                yield event(told)
        finally:
            self._store.end(self._client, self._id)
            self._ended.set()

    async def cancel(self) -> dict[str, Any]:
        """Cancels the answer; returns the part that exists."""
        self._is_cancelled = True
        await self._engine.abort(self._id)
        # A slow client may not have read all events yet.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), _END_SECONDS)
        return self._response("cancelled")

    async def _told(self, path: str, generations: Generations) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the events of a stream."""
        yield {"type": "response.created", "response": self._response("in_progress")}
        yield {"type": "response.in_progress", "response": self._response("in_progress")}
        try:
            async for _, output in generations.merged():
                self._usage.add(output)
                (one,) = output.outputs
                for told in self._output.add(self._events(one)):
                    yield told
                if one.finished():
                    status = "cancelled" if self._is_cancelled and one.finish_reason == "abort" else _status(one)
                    # OpenAI has no event for a cancelled answer.
                    kind = "completed" if status == "completed" else "incomplete"
                    for told in self._output.finish(kind):
                        yield told
                    yield {"type": f"response.{kind}", "response": self._finished(status)}
        except ApiError as error:
            for told in self._output.finish("incomplete"):
                yield told
            failed = self._response("failed")
            told_error = error_body(path, error)["error"]
            failed["error"] = {"code": told_error["code"] or told_error["type"], "message": told_error["message"]}
            yield {"type": "response.failed", "response": failed}

    def _events(self, one: CompletionOutput) -> list[Event]:
        if self._logprobs is not None:
            # The reader shortens the output at a stop string.
            self._logprobs.add(one)
        events = self._reader.read(one)
        self._reasoning.add(0, events)
        return events

    def _finished(self, status: str) -> dict[str, Any]:
        """Returns the answer, and stores it if requested."""
        response = self._response(status)
        if self._body.store:
            items = [item.model_dump(exclude_none=True, by_alias=True) for item in self._said.input]
            self._store.put(self._client, StoredResponse(response, self._said.before, items))
        return response

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        ended = status in ("completed", "incomplete", "cancelled")
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        effort = None if body.reasoning is None else body.reasoning.effort
        given = None if body.text is None else body.text.format
        text_format = None if given is None else given.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": self._output.items if status != "in_progress" else [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": effort, "summary": None},
            "store": body.store,
            "temperature": self._params.temperature,
            "text": {"format": text_format or {"type": "text"}},
            "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else body.tool_choice.model_dump(),
            "tools": [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs,
            "top_p": self._params.top_p,
            "truncation": body.truncation,
            "usage": response_usage(self._usage, self._reasoning) if ended else None,
            "user": body.user,
        }


def _status(one: CompletionOutput) -> str:
    """Returns how an answer ended; OpenAI has no values for a timeout and for a shutdown."""
    check_ending(one)
    return "completed" if one.finish_reason == "stop" else "incomplete"
