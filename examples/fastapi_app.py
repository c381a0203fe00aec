"""Streams completions over HTTP as server-sent events; a client that goes away ends its request.

ROCMFORGE_MODEL=model.gguf uvicorn --app-dir examples fastapi_app:app
curl -N localhost:8000/v1/completions -H 'content-type: application/json' -d '{"prompt": "The sky is"}'
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from rocmforge import AsyncLLM, InvalidRequestError, QueueFullError, RequestOutput, SamplingParams


class Completion(BaseModel):
    prompt: str
    max_tokens: int = 256
    temperature: float = 0.7
    seed: int | None = None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncLLM(os.environ["ROCMFORGE_MODEL"]) as app.state.engine:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/v1/completions")
async def complete(body: Completion) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        async with aclosing(outputs):
            yield event(first)
            async for output in outputs:
                yield event(output)

    try:
        params = SamplingParams(**body.model_dump(exclude={"prompt"}), output_kind="delta")
        outputs = app.state.engine.generate(body.prompt, params)
        first = await anext(outputs)  # a refusal comes before the first output, while there is a status to give
    except (InvalidRequestError, QueueFullError) as error:
        raise HTTPException(503 if isinstance(error, QueueFullError) else 400, str(error)) from error
    return StreamingResponse(events(), media_type="text/event-stream")


def event(output: RequestOutput) -> str:
    choices = [{"text": o.text, "finish_reason": o.finish_reason} for o in output.outputs]
    return f"data: {json.dumps({'id': output.request_id, 'choices': choices})}\n\n"


@app.get("/stats")
async def stats() -> dict[str, object]:
    return asdict(app.state.engine.stats())
