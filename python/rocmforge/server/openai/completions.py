"""`/v1/completions`."""

import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from rocmforge.async_llm import AsyncLLM
from rocmforge.executors import to_thread
from rocmforge.outputs import CompletionOutput, RequestOutput
from rocmforge.server.answers.generation import Generations
from rocmforge.server.endpoints.infill import infill_prompt
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import Submitted, event, respond
from rocmforge.server.openai.events import DONE, Usage, chunk_head, error_event, finish_reason
from rocmforge.server.openai.logprobs import Offsets, Position, completion_logprobs
from rocmforge.server.requests import (
    STREAM_MEANING,
    STREAM_OPTIONS_MEANING,
    GenerationBody,
    ModelBody,
    Prompts,
    Served,
    StreamOptions,
    check_limit,
    prompt_list,
)
from rocmforge.server.service import Service

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute)


class CompletionRequest(GenerationBody, ModelBody):
    """The body of `/v1/completions`."""

    prompt: Prompts = Field(description="Text or token ids, or a list of them.")
    suffix: str | None = Field(
        None, description="The text after the answer, for models that were trained to fill in the middle."
    )
    best_of: int | None = Field(None, ge=1, description="The same as `n`: all answers are returned.")
    max_tokens: int = Field(16, ge=0, description="Maximum tokens of each sequence; 0 only with `echo`.")
    logprobs: int | None = Field(None, ge=0, description="Number of most likely tokens to report for each token.")
    echo: bool = Field(default=False, description="If true, the text begins with the prompt.")
    stream: bool = Field(default=False, description=STREAM_MEANING)
    stream_options: StreamOptions | None = Field(None, description=STREAM_OPTIONS_MEANING)


@router.post("/v1/completions")
async def create_completion(body: CompletionRequest, request: Request, models: Served) -> Response:
    """Continues a text."""
    name = body.model_name(models.registry)
    service = await models.use(name)
    prompts = prompt_list("prompt", body.prompt, service)
    if body.suffix:
        prompts = await _infill_prompts(body, prompts, service)
    check_limit("logprobs", body.logprobs or 0, service.config.max_logprobs, "max_logprobs")
    if body.stream and body.echo:
        raise ApiError(400, "echo: got true with stream, expected one of them", param="echo")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options: got them without stream", param="stream_options")
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens: got 0, expected at least 1 (0 only with echo)", param="max_tokens")
    if body.best_of not in (None, body.n):
        raise ApiError(400, f"best_of: got {body.best_of}, expected {body.n} as n; ask for all with n", param="best_of")
    params = body.sampling(
        service,
        # The engine generates at least one token; `max_tokens: 0` leaves it out of the answer.
        max_tokens=body.max_tokens or 1,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        output_kind="delta" if body.stream else "final_only",
    )
    answer = _Answer(body, name or service.names[0], service.engine)
    submitted = service.submit(prompts, params, body.call(request, answer.id))
    return await respond(request, answer, submitted, stream=body.stream)


async def _infill_prompts(
    body: CompletionRequest, prompts: Sequence[str | list[int]], service: Service
) -> list[list[int]]:
    """Returns the prompts with the suffix, as token ids."""
    if body.echo:
        raise ApiError(400, "suffix: got one with echo, expected one of them", param="suffix")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise ApiError(400, "suffix: got it with token ids, expected prompts that are text", param="suffix")
    return [await to_thread(infill_prompt, service, text, body.suffix or "") for text in texts]


class _Answer:
    """Builds the answer to one request."""

    def __init__(self, body: CompletionRequest, model: str, engine: AsyncLLM) -> None:
        self._body = body
        self._engine = engine
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self._head = chunk_head(self.id, "text_completion", model)
        self._usage = Usage()
        # The next offset of each choice's log-probabilities.
        self._offsets: dict[int, Offsets] = {}

    async def whole(self, submitted: Submitted) -> Response:
        """Returns the complete answer."""
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
        """Yields the answer as it comes."""
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
        text = one.text
        if self._body.echo:
            asked = output.prompt
            text = (self._engine.detokenize(output.prompt_token_ids) if asked is None else asked) + text
        return {
            "index": index,
            "text": text,
            "logprobs": None if one.logprobs is None else self._logprobs(index, output, one),
            "finish_reason": finish_reason(one),
            "stop_reason": one.stop_reason,
        }

    def _logprobs(self, index: int, output: RequestOutput, one: CompletionOutput) -> dict[str, Any]:
        tokenizer, prompt = self._engine.tokenizer, output.prompt_token_ids
        positions: list[Position | None] = [*(one.logprobs or [])]
        ids = [next(iter(position)) for position in one.logprobs or []]
        offsets: list[int] = []
        if self._body.echo:
            # The text of a prompt given as tokens has all of them, control tokens too.
            echoed = Offsets(tokenizer, skip_special=output.prompt is not None)
            offsets = [echoed.next(token) for token in prompt]
            positions, ids = [*(output.prompt_logprobs or []), *positions], [*prompt, *ids]
            self._offsets[index] = echoed
        skip = self._body.skip_special_tokens
        own = self._offsets.setdefault(index, Offsets(tokenizer, prompt, skip_special=skip))
        offsets += [own.next(token) for token in ids[len(offsets) :]]
        return completion_logprobs(positions, ids, offsets, tokenizer)
