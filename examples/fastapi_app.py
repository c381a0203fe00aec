"""Streams completions over HTTP as server-sent events; a client that goes away ends its request.

ROCMFORGE_MODEL=model.gguf uvicorn --app-dir examples fastapi_app:app
curl -N localhost:8000/generate -H 'content-type: application/json' -d '{"prompt": "The sky is"}'
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from rocmforge import AsyncLLM, InvalidRequestError, QueueFullError, RequestOutput, SamplingParams

MODEL = os.environ.get("ROCMFORGE_MODEL")
if MODEL is None:
    raise SystemExit("ROCMFORGE_MODEL is not set: give it the path of a GGUF file")


class Completion(BaseModel):
    prompt: str
    max_tokens: int = 256
    temperature: float = 0.7
    seed: int | None = None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with await AsyncLLM.load(MODEL) as app.state.engine:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/generate")
async def generate(body: Completion, request: Request) -> Response:
    async def events() -> AsyncIterator[str]:
        async with aclosing(outputs):
            yield event(first)
            async for output in outputs:
                yield event(output)

    try:
        params = SamplingParams(**body.model_dump(exclude={"prompt"}), output_kind="delta")
        outputs = app.state.engine.generate(body.prompt, params)
        # A refusal comes before the first output, while there is a status to give.
        first = await unless_gone(request, asyncio.ensure_future(anext(outputs)))
    except InvalidRequestError as error:
        raise HTTPException(400, str(error)) from error
    except QueueFullError as error:
        raise HTTPException(429, str(error), headers={"Retry-After": "1"}) from error
    if first is None:
        return Response(status_code=499)  # nobody reads it
    return StreamingResponse(events(), media_type="text/event-stream")


async def unless_gone(request: Request, first: asyncio.Future[RequestOutput]) -> RequestOutput | None:
    """The first output. A long prompt takes its time: if the client leaves before that, the request is cancelled."""
    gone = asyncio.ensure_future(left(request))
    try:
        await asyncio.wait({first, gone}, return_when=asyncio.FIRST_COMPLETED)
        return first.result() if first.done() else None
    finally:
        # One of the two may still wait. Cancelling `anext` closes its generator, and that aborts the request.
        first.cancel()
        gone.cancel()


async def left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event(output: RequestOutput) -> str:
    choices = [{"text": o.text, "finish_reason": o.finish_reason} for o in output.outputs]
    return f"data: {json.dumps({'id': output.request_id, 'choices': choices})}\n\n"


@app.get("/stats")
async def stats() -> dict[str, object]:
    return asdict(app.state.engine.stats())
