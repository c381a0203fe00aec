"""`/api/embed`, and `/api/embeddings`, which came before it."""

import asyncio
import time
import uuid
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.responses import Response

from rocmforge.server.generation import Call
from rocmforge.server.ollama.bodies import (
    AnyJsonRoute,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
)
from rocmforge.server.ollama.generation import used
from rocmforge.server.openai.embeddings import check_dimensions, shortened, tokens
from rocmforge.server.requests import Served, check_limit, shortest_timeout
from rocmforge.server.service import Service
from rocmforge.server.streaming import compact_json, unless_gone

router = APIRouter(tags=["Ollama"], route_class=AnyJsonRoute)


@router.post("/api/embed")
async def embed(body: OllamaEmbedRequest, request: Request, models: Served) -> Response:
    """Makes a vector of each text."""
    started = time.monotonic_ns()
    service = await used(body, models)
    load_duration = time.monotonic_ns() - started
    texts = [body.input] if isinstance(body.input, str) else body.input
    check_limit("input", len(texts), service.config.max_prompts, "max_prompts")
    check_dimensions(body.dimensions, service)
    body.options.check(service)

    async def answer() -> bytes:
        if not texts:
            return compact_json({"model": body.model, "embeddings": []})
        ids = await tokens(service, texts)
        if body.truncate:
            ids = [_cut(one, service, body.options.num_ctx) for one in ids]
        vectors = shortened(await service.embed(ids, _call(request)), body.dimensions)
        numbers = {
            "total_duration": time.monotonic_ns() - started,
            "load_duration": load_duration,
            "prompt_eval_count": sum(map(len, ids)),
        }
        return await asyncio.to_thread(_answer, {"model": body.model}, vectors, numbers)

    return Response(await unless_gone(request, answer()), media_type="application/json")


@router.post("/api/embeddings")
async def embeddings(body: OllamaEmbeddingsRequest, request: Request, models: Served) -> Response:
    """Makes a vector of one text, which is no unit."""
    service = await used(body, models)
    body.options.check(service)

    async def answer() -> bytes:
        if not body.prompt:
            return compact_json({"embedding": []})
        ids = [_cut(one, service, body.options.num_ctx) for one in await tokens(service, [body.prompt])]
        vectors = await service.embed(ids, _call(request), normalize=False)
        return compact_json({"embedding": vectors[0].tolist()})

    return Response(await unless_gone(request, answer()), media_type="application/json")


def _call(request: Request) -> Call:
    return Call(request.state.client, f"ollama-{uuid.uuid4().hex}", timeout=shortest_timeout(request, None))


def _cut(ids: list[int], service: Service, num_ctx: int | None) -> list[int]:
    """The tokens that have room; those that the file adds at a text's end stay at the end."""
    longest = num_ctx or service.engine.max_model_len
    if len(ids) <= longest:
        return ids
    added = service.engine.tokenize("")
    last = added[-1:] if added[-1:] == ids[-1:] else []
    return ids[: longest - len(last)] + last


def _answer(head: dict[str, Any], vectors: NDArray[np.float32], numbers: dict[str, int]) -> bytes:
    return compact_json(head | {"embeddings": vectors.tolist()} | numbers)
