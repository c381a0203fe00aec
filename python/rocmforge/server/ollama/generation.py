"""`/api/generate` and `/api/chat`."""

import functools
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from rocmforge._rocmforge import SamplingParams
from rocmforge.errors import InvalidRequestError
from rocmforge.executors import to_thread
from rocmforge.outputs import CompletionOutput, RequestOutput
from rocmforge.prompts import AnyPrompt, ChatOptions, with_images
from rocmforge.server.answers.generation import Call, Generations
from rocmforge.server.answers.replies import Reader
from rocmforge.server.chat.rules import ruled_prompt
from rocmforge.server.endpoints.infill import infill_prompt
from rocmforge.server.errors import ApiError
from rocmforge.server.errors import body as error_body
from rocmforge.server.http.streaming import Submitted, compact_json, respond
from rocmforge.server.images.sent import read_images, without_images
from rocmforge.server.lengths import check_length
from rocmforge.server.models.registry import RequestModels
from rocmforge.server.ollama.bodies import (
    AnyJsonRoute,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaModelBody,
    content,
    served_name,
)
from rocmforge.server.ollama.model_file import timestamp
from rocmforge.server.ollama.replies import OllamaReply
from rocmforge.server.openai.events import finish_reason
from rocmforge.server.openai.logprobs import chat_logprobs
from rocmforge.server.requests import Served, check_limit, shortest_timeout
from rocmforge.server.service import Service

router = APIRouter(tags=["Ollama"], route_class=AnyJsonRoute)

NANOSECONDS = 1_000_000_000


@router.post("/api/generate")
async def generate(body: OllamaGenerateRequest, request: Request, models: Served) -> Response:
    """Answers a prompt, or continues a text."""
    if not body.prompt and body.keep_alive == 0:
        return await _unloaded(body, models, {"response": ""})
    started = time.monotonic_ns()
    service = await used(body, models)
    answer = _Answer(body, service, started, lambda text, others: {"response": text} | others)
    if not body.prompt and not body.images:
        return answer.loaded()
    return await answer.respond(request, functools.partial(_generate_prompt, body, service))


@router.post("/api/chat")
async def chat(body: OllamaChatRequest, request: Request, models: Served) -> Response:
    """Answers a conversation."""
    if not body.messages and body.keep_alive == 0:
        return await _unloaded(body, models, {"message": {"role": "assistant", "content": ""}})
    started = time.monotonic_ns()
    service = await used(body, models)
    answer = _Answer(
        body, service, started, lambda text, others: {"message": {"role": "assistant", "content": text} | others}
    )
    if not body.messages:
        return answer.loaded()
    return await answer.respond(request, functools.partial(_chat_prompt, body, service))


async def used(body: OllamaModelBody, models: RequestModels) -> Service:
    """The model that a request names, kept loaded for as long as it says."""
    name = served_name(models.registry, body.model)
    service = await models.use(name)
    if body.keep_alive is not None:
        models.keep(name, float(body.keep_alive) if float(body.keep_alive) >= 0 else None)
    return service


async def _unloaded(
    body: OllamaGenerateRequest | OllamaChatRequest, models: RequestModels, nothing: dict[str, Any]
) -> Response:
    """Answers a request without a prompt by which Ollama's clients unload a model."""
    await models.unload(served_name(models.registry, body.model))
    head = {"model": body.model, "created_at": timestamp(time.time())}
    return JSONResponse(head | nothing | {"done": True, "done_reason": "unload"})


Prepared = tuple[AnyPrompt, SamplingParams, Reader | None]
"""The prompt, the parameters with the rules of the answer, and what reads it; nothing where all of it is the answer."""


def _generate_prompt(body: OllamaGenerateRequest, service: Service, params: SamplingParams, call: Call) -> Prepared:
    engine = service.engine
    rules = body.rules()
    messages: list[dict[str, Any]] = [{"role": "user", "content": content(body.prompt, body.images, "images")}]
    has_template = engine.tokenizer.has_chat_template or service.chat_template is not None
    try:
        if body.suffix is not None:
            if rules.constraint is not None:
                params = params.replace(structured_outputs=rules.constraint)
            return infill_prompt(service, body.prompt, body.suffix), params, None
        if body.raw or (not has_template and not body.system):
            if rules.constraint is not None:
                params = params.replace(structured_outputs=rules.constraint)
            check_length(engine, "prompt", body.prompt)
            # With `raw` the sender did the work of the chat template, and spells control tokens.
            ids = engine.tokenize(body.prompt, parse_special=body.raw)
            if engine.mmproj is None:
                without_images(messages)
            images = read_images(messages, service.config, service.images, call.client.salt)
            return with_images(ids, images), params, None
        if body.system:
            messages.insert(0, {"role": "system", "content": body.system})
        prompt = ruled_prompt(service, rules, messages, {"add_generation_prompt": True}, params, call)
        return prompt.plain, prompt.params, prompt.reader(service)
    except (ApiError, InvalidRequestError) as error:
        if isinstance(error, ApiError) and error.param != "messages":
            raise
        # The fault is that of a text or of messages there.
        message = str(error.detail if isinstance(error, ApiError) else error)
        message = message.removeprefix("text: ").removeprefix("messages: ").removeprefix("prompt: ")
        raise ApiError(400, f"prompt: {message}", param="prompt") from error


def _chat_prompt(body: OllamaChatRequest, service: Service, params: SamplingParams, call: Call) -> Prepared:
    goes_on = body.messages[-1].role == "assistant"
    rules = body.rules([tool.described() for tool in body.tools or ()])
    messages = [message.for_template(index) for index, message in enumerate(body.messages)]
    options = ChatOptions(add_generation_prompt=not goes_on, continue_final_message=goes_on)
    prompt = ruled_prompt(service, rules, messages, options, params, call)
    service.metrics.replayed_turns.inc(prompt.num_turns)
    return prompt.plain, prompt.params, prompt.reader(service)


class _Answer:
    """Makes the answer to one request.

    Args:
        body: The request.
        service: What answers it.
        started: When it came, by `time.monotonic_ns`.
        wrap: Makes the fields of a piece of its text and of what else is in it.
    """

    def __init__(
        self,
        body: OllamaGenerateRequest | OllamaChatRequest,
        service: Service,
        started: int,
        wrap: Callable[[str, dict[str, Any]], dict[str, Any]],
    ) -> None:
        check_limit("top_logprobs", body.top_logprobs, service.config.max_logprobs, "max_logprobs")
        self._started = started
        self._load_duration = time.monotonic_ns() - started
        self._body = body
        self._service = service
        self._wrap = wrap
        self._num_tokens = 0
        self._reader: Reader | None = None
        self._reply = OllamaReply()
        self._params = body.options.sampling(
            service,
            logprobs=body.top_logprobs if body.logprobs else None,
            output_kind="delta" if body.stream else "final_only",
        )

    def loaded(self) -> Response:
        """The answer to a request without a prompt, by which Ollama's clients load a model."""
        return JSONResponse(self._piece("", {}) | {"done": True, "done_reason": "load"})

    async def respond(self, request: Request, prompt: Callable[[SamplingParams, Call], Prepared]) -> Response:
        """Generates the answer.

        Args:
            request: The client's.
            prompt: Makes the prompt, which may take milliseconds.
        """
        submitted = self._submit(request, prompt)
        return await respond(
            request, self, submitted, stream=self._body.stream, media_type="application/x-ndjson", ping=None
        )

    async def _submit(self, request: Request, prompt: Callable[[SamplingParams, Call], Prepared]) -> Generations:
        call = Call(
            request.state.client,
            f"ollama-{uuid.uuid4().hex}",
            timeout=shortest_timeout(request, None),
            constraint_param="format",
            stops=None if self._reader is None else self._reader.stops,
        )
        plain, params, self._reader = await to_thread(prompt, self._params, call)
        return await self._service.submit([plain], params, call)

    async def whole(self, submitted: Submitted) -> Response:
        """Returns the complete answer."""
        async with await submitted as generations:
            (output,) = await generations.final()
        (one,) = output.outputs
        self._num_tokens += len(one.token_ids)
        return JSONResponse(self._piece(*self._read(one), one) | self._end(output, finish_reason(one)))

    async def pieces(self, path: str, generations: Generations) -> AsyncGenerator[bytes, None]:
        """Everything as it comes, on lines."""
        try:
            async for _, output in generations.merged():
                for one in output.outputs:
                    self._num_tokens += len(one.token_ids)
                    text, others = self._read(one)
                    if text or others or one.logprobs:
                        yield _line(self._piece(text, others, one))
                    if (reason := finish_reason(one)) is not None:
                        yield _line(self._piece("", {}) | self._end(output, reason))
        except ApiError as error:
            yield _line(error_body(path, error))

    def _read(self, one: CompletionOutput) -> tuple[str, dict[str, Any]]:
        if self._reader is None:
            return one.text, {}
        return self._reply.add(self._reader.read(one), ended=one.finished())

    def _piece(self, text: str, others: dict[str, Any], one: CompletionOutput | None = None) -> dict[str, Any]:
        head = {"model": self._body.model, "created_at": timestamp(time.time())}
        piece = head | self._wrap(text, others) | {"done": False}
        if one is not None and one.logprobs is not None:
            tokenizer = self._service.engine.tokenizer
            piece["logprobs"] = chat_logprobs(one.logprobs, tokenizer, self._body.top_logprobs)["content"]
        return piece

    def _end(self, output: RequestOutput, reason: str | None) -> dict[str, Any]:
        """The fields of the last piece; the times are in nanoseconds."""
        times = output.metrics
        total = times.total_time or 0.0
        first_token = total if times.time_to_first_token is None else times.time_to_first_token
        queued = first_token if times.time_in_queue is None else times.time_in_queue
        return {
            "done": True,
            "done_reason": reason,
            "total_duration": time.monotonic_ns() - self._started,
            "load_duration": self._load_duration,
            "prompt_eval_count": len(output.prompt_token_ids),
            "prompt_eval_duration": round((first_token - queued) * NANOSECONDS),
            "eval_count": self._num_tokens,
            "eval_duration": round((total - first_token) * NANOSECONDS),
        }


def _line(value: dict[str, Any]) -> bytes:
    return compact_json(value) + b"\n"
