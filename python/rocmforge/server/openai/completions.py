"""`/v1/completions`."""

import uuid
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from rocmforge.async_llm import AsyncLLM
from rocmforge.outputs import CompletionOutput, RequestOutput
from rocmforge.server.errors import ApiError
from rocmforge.server.generation import Generations
from rocmforge.server.openai.events import DONE, Usage, chunk_head, error_event, finish_reason
from rocmforge.server.openai.logprobs import Position, completion_logprobs
from rocmforge.server.requests import (
    MODEL_MEANING,
    STREAM_MEANING,
    STREAM_OPTIONS_MEANING,
    GenerationBody,
    Prompts,
    Served,
    StreamOptions,
    check_limit,
    prompt_list,
)
from rocmforge.server.streaming import Submitted, event, respond

router = APIRouter(tags=["OpenAI"])


class CompletionRequest(GenerationBody):
    """The body of `/v1/completions`."""

    model: str | None = Field(None, description=MODEL_MEANING)
    prompt: Prompts = Field(description="Text or token ids, or a list of them.")
    max_tokens: int = Field(16, ge=0, description="Most tokens of each sequence; 0 only with `echo`.")
    logprobs: int | None = Field(None, ge=0, description="Most likely tokens to report for each token.")
    echo: bool = Field(default=False, description="Whether the text begins with the prompt.")
    stream: bool = Field(default=False, description=STREAM_MEANING)
    stream_options: StreamOptions | None = Field(None, description=STREAM_OPTIONS_MEANING)


@router.post("/v1/completions")
async def create_completion(body: CompletionRequest, request: Request, models: Served) -> Response:
    """Goes on with a text."""
    service = await models.use(body.model)
    prompts = prompt_list("prompt", body.prompt, service)
    check_limit("logprobs", body.logprobs or 0, service.config.max_logprobs, "max_logprobs")
    if body.stream and body.echo:
        raise ApiError(400, "echo: got true with stream, expected one of them", param="echo")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options: got them without stream", param="stream_options")
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens: got 0, expected at least 1 (0 only with echo)", param="max_tokens")
    params = body.sampling(
        service,
        # The engine generates at least one token; `max_tokens: 0` leaves it out of the answer.
        max_tokens=body.max_tokens or 1,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        output_kind="delta" if body.stream else "final_only",
    )
    answer = _Answer(body, body.model or service.names[0], service.engine)
    submitted = service.submit(prompts, params, body.call(request, answer.id))
    return await respond(request, answer, submitted, stream=body.stream)


class _Answer:
    """Makes the answer to one request."""

    def __init__(self, body: CompletionRequest, model: str, engine: AsyncLLM) -> None:
        self._body = body
        self._engine = engine
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self._head = chunk_head(self.id, "text_completion", model)
        self._usage = Usage()
        # Characters of each choice that were sent, where the offsets of log-probabilities go on.
        self._length: Counter[int] = Counter()

    async def whole(self, submitted: Submitted) -> Response:
        """Everything at once."""
        async with await submitted as generations:
            outputs = await generations.final()
        choices = []
        for prompt, output in enumerate(outputs):
            if self._body.max_tokens == 0:
                for one in output.outputs:
                    one.text, one.token_ids, one.logprobs, one.finish_reason = "", [], one.logprobs and [], "length"
            choices += [self._choice(prompt, output, one) for one in output.outputs]
            self._usage.add(output, prompt)
        return JSONResponse(self._head | {"choices": choices, "usage": self._usage.value()})

    async def pieces(self, path: str, generations: Generations) -> AsyncGenerator[bytes, None]:
        """Everything as it comes."""
        options = self._body.stream_options or StreamOptions()
        try:
            async for prompt, output in generations.merged():
                self._usage.add(output, prompt)
                usage = {"usage": self._usage.value()} if options.continuous_usage_stats else {}
                for one in output.outputs:
                    yield event(self._head | {"choices": [self._choice(prompt, output, one)]} | usage)
        except ApiError as error:
            yield error_event(path, error)
            return
        if options.include_usage:
            yield event(self._head | {"choices": [], "usage": self._usage.value()})
        yield DONE

    def _choice(self, prompt: int, output: RequestOutput, one: CompletionOutput) -> dict[str, Any]:
        index = prompt * self._body.n + one.index
        text, first = one.text, ""
        positions: list[Position | None] = [*(one.logprobs or [])]
        if self._body.echo:
            asked, decode = output.prompt, self._engine.detokenize
            text = (decode(output.prompt_token_ids) if asked is None else asked) + text
            first = decode(output.prompt_token_ids[:1])
            positions = [*(output.prompt_logprobs or []), *positions]
        logprobs = None if one.logprobs is None else completion_logprobs(positions, self._length[index], first)
        self._length[index] += len(text)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason(one),
            "stop_reason": one.stop_reason,
        }
