"""The API of the system that rocmforge follows: `/generate`, `/generate/stream`, `/status/{id}`, `/cancel/{id}`."""

import time
from array import array
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import AliasChoices, Field
from starlette.responses import JSONResponse, Response

from rocmforge.outputs import RequestOutput
from rocmforge.server.answers.generation import Client, Generations
from rocmforge.server.errors import ApiError, route_path
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import EVENT_STREAM, PING, StreamResponse, Submitted, event, unless_gone
from rocmforge.server.openai.events import error_event
from rocmforge.server.requests import MODEL_MEANING, AllModels, GenerationBody, Served
from rocmforge.server.service import Service

router = APIRouter(tags=["Native"], route_class=BodyRoute)

# Most results that are kept, and most tokens in all of them: some 8 bytes each, with their text.
MAX_RESULTS = 1000
MAX_RESULT_TOKENS = 4_000_000

# Finish reasons that this API names differently.
_REASONS = {"abort": "cancelled", "error": "failed"}


class GenerateRequest(GenerationBody):
    """The body of `/generate` and `/generate/stream`."""

    model: str | None = Field(None, description=MODEL_MEANING)
    prompt: str | list[int] = Field(description="Text or token ids.")
    max_tokens: int = Field(100, ge=1, description="Maximum number of tokens to generate.")
    n: Literal[1] = Field(default=1, description="An answer has one sequence.")
    repetition_penalty: float | None = Field(
        None,
        validation_alias=AliasChoices("repeat_penalty", "repetition_penalty"),
        description="Also as `repetition_penalty`.",
    )
    stream: bool | None = Field(None, description="If true, `/generate` answers as `/generate/stream` does.")


class Progress:
    """All that a request has generated so far, and how it ended."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.finish_reason: str | None = None
        self._tokens = array("I")
        self._texts: list[str] = []

    @property
    def num_tokens(self) -> int:
        """The number of generated tokens."""
        return len(self._tokens)

    def value(self) -> dict[str, Any]:
        """Returns the complete answer."""
        return {
            "request_id": self.request_id,
            "text": "".join(self._texts),
            "tokens": self._tokens.tolist(),
            "finished": self.finish_reason is not None,
            "finish_reason": self.finish_reason,
        }

    def add(self, output: RequestOutput) -> list[dict[str, Any]]:
        """Adds new output, and returns an event for each token; the last event has the text of all new tokens.

        Nothing is added after a cancel, so its answer stays correct.

        Raises:
            ApiError: The request failed.
        """
        if self.finish_reason is not None:
            return [self._event(None, "")] if output.finished else []
        events = []
        for one in output.outputs:
            self._tokens.extend(one.token_ids)
            self._texts.append(one.text)
            if one.finish_reason is not None:
                self.finish_reason = _REASONS.get(one.finish_reason, one.finish_reason)
            if one.finish_reason == "error":
                raise ApiError(500, one.error or "the request failed")
            last = one.token_ids[-1] if one.token_ids else None
            unfinished = {"finished": False, "finish_reason": None}
            events += [self._event(token, "") | unfinished for token in one.token_ids[:-1]]
            events.append(self._event(last, one.text))
        return events

    def end(self) -> None:
        """Marks a request whose client has left, and keeps the text in one piece."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
        self._texts = ["".join(self._texts)]

    def _event(self, token: int | None, text: str) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "token": token,
            "text": text,
            "finished": self.finish_reason is not None,
            "finish_reason": self.finish_reason,
        }


class Results:
    """The requests that run, and those that ended lately: a bounded number of them, for a bounded time.

    Args:
        retention: Seconds for which a result is kept.
    """

    def __init__(self, retention: float) -> None:
        self.retention = retention
        self._running: dict[tuple[Client, str], Progress] = {}
        # The oldest come first, each with the time at which it is forgotten.
        self._ended: OrderedDict[tuple[Client, str], tuple[float, Progress]] = OrderedDict()
        self._num_tokens = 0

    def find(self, client: Client, request_id: str) -> Progress | None:
        """Returns a client's request by name; the requests of other clients are not visible."""
        self._forget()
        key = client, request_id
        if key in self._running:
            return self._running[key]
        return self._ended[key][1] if key in self._ended else None

    @contextmanager
    def recorded(self, client: Client, request_id: str) -> Iterator[Progress]:
        """Keeps the progress of a request while the block runs, and its result afterwards."""
        key = client, request_id
        progress = self._running[key] = Progress(request_id)
        try:
            yield progress
        finally:
            progress.end()
            # A slow client may still read the answer when its name is used again.
            if self._running.get(key) is progress:
                del self._running[key]
            self._keep(key, progress)

    def _keep(self, key: tuple[Client, str], progress: Progress) -> None:
        if key in self._ended:
            self._num_tokens -= self._ended.pop(key)[1].num_tokens
        self._ended[key] = time.monotonic() + self.retention, progress
        self._num_tokens += progress.num_tokens
        self._forget()

    def _forget(self) -> None:
        now = time.monotonic()
        while self._ended and (
            next(iter(self._ended.values()))[0] <= now
            or len(self._ended) > MAX_RESULTS
            or self._num_tokens > MAX_RESULT_TOKENS
        ):
            _, (_, progress) = self._ended.popitem(last=False)
            self._num_tokens -= progress.num_tokens


def _results(request: Request) -> Results:
    results: Results = request.app.state.results
    return results


Recorded = Annotated[Results, Depends(_results)]


@router.post("/generate")
async def generate(body: GenerateRequest, request: Request, models: Served, results: Recorded) -> Response:
    """Continues a text."""
    submitted = _submit(body, request, await models.use(body.model))
    if body.stream:
        return await _streamed(request, submitted, results)
    return await unless_gone(request, _whole(request, submitted, results))


@router.post("/generate/stream")
async def generate_stream(body: GenerateRequest, request: Request, models: Served, results: Recorded) -> Response:
    """Continues a text, with an event for each token."""
    if body.stream is False:
        raise ApiError(400, "stream: got false, expected true on this path; use /generate", param="stream")
    return await _streamed(request, _submit(body, request, await models.use(body.model)), results)


@router.get("/status/{request_id}")
async def status(request_id: str, request: Request, results: Recorded) -> dict[str, Any]:
    """Returns a request's output so far, or its result for some minutes after its end."""
    return _found(request_id, request, results).value()


@router.post("/cancel/{request_id}")
async def cancel(request_id: str, request: Request, models: AllModels, results: Recorded) -> dict[str, Any]:
    """Cancels a request and returns its output; no effect on one that has ended."""
    progress = _found(request_id, request, results)
    if progress.finish_reason is None:
        progress.finish_reason = "cancelled"
        for service in models.services:
            await service.engine.abort(_engine_id(request.state.client, request_id))
    return progress.value()


def _found(request_id: str, request: Request, results: Results) -> Progress:
    progress = results.find(request.state.client, request_id)
    if progress is None:
        raise ApiError(
            404,
            f"request: got {request_id!r}, expected the id of one that runs or ended in the last "
            f"{results.retention:g} s",
        )
    return progress


def _engine_id(client: Client, request_id: str) -> str:
    # Two clients may choose the same name, and neither learns of the other's.
    return f"{client.name}:{request_id}"


def _submit(body: GenerateRequest, request: Request, service: Service) -> Submitted:
    params = body.sampling(service, max_tokens=body.max_tokens, output_kind="delta")
    call = body.call(request, _engine_id(request.state.client, request.state.request_id))
    return service.submit([body.prompt], params, call)


async def _whole(request: Request, submitted: Submitted, results: Results) -> Response:
    async with await submitted as generations:
        with results.recorded(request.state.client, request.state.request_id) as progress:
            async for _, output in generations.merged():
                progress.add(output)
    return JSONResponse(progress.value())


async def _streamed(request: Request, submitted: Submitted, results: Results) -> Response:
    generations = await unless_gone(request, submitted)
    return StreamResponse(_events(request, generations, results), generations, EVENT_STREAM, PING)


async def _events(request: Request, generations: Generations, results: Results) -> AsyncGenerator[bytes, None]:
    with results.recorded(request.state.client, request.state.request_id) as progress:
        try:
            async for _, output in generations.merged():
                for one in progress.add(output):
                    yield event(one)
        except ApiError as error:
            yield error_event(route_path(request.scope), error)
