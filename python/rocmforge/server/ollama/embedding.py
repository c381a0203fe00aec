"""`/api/embed`, and `/api/embeddings`, which came before it."""

import time
import uuid
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.responses import Response

from rocmforge.executors import to_thread
from rocmforge.server.answers.generation import Call
from rocmforge.server.http.streaming import compact_json, unless_gone
from rocmforge.server.lengths import longest_text
from rocmforge.server.ollama.bodies import (
    AnyJsonRoute,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
)
from rocmforge.server.ollama.generation import used
from rocmforge.server.openai.embeddings import check_dimensions, shortened, tokens
from rocmforge.server.requests import Served, check_limit, shortest_timeout
from rocmforge.server.service import Service

router = APIRouter(tags=["Ollama"], route_class=AnyJsonRoute)


@router.post("/api/embed")
async def embed(body: OllamaEmbedRequest, request: Request, models: Served) -> Response:
    """Returns a vector for each text."""
    started = time.monotonic_ns()
    service = await used(body, models)
    load_duration = time.monotonic_ns() - started
    texts = [body.input] if isinstance(body.input, str) else body.input
    check_limit("input", len(texts), service.config.max_prompts, "max_prompts")
    check_dimensions(body.dimensions, service)

    async def answer() -> bytes:
        if not texts:
            return compact_json({"model": body.model, "embeddings": []})
        # A text that will be cut anyway is cut before it is tokenised, which saves the work.
        longest = longest_text(service.engine) if body.truncate else None
        ids = await tokens(service, [text[:longest] for text in texts])
        if body.truncate:
            ids = [_cut(one, service, body.options.num_ctx) for one in ids]
        vectors = shortened(await service.embed(ids, _call(request), "input"), body.dimensions)
        numbers = {
            "total_duration": time.monotonic_ns() - started,
            "load_duration": load_duration,
            "prompt_eval_count": sum(map(len, ids)),
        }
        return await to_thread(_answer, {"model": body.model}, vectors, numbers)

    return Response(await unless_gone(request, answer()), media_type="application/json")


@router.post("/api/embeddings")
async def embeddings(body: OllamaEmbeddingsRequest, request: Request, models: Served) -> Response:
    """Returns the vector of one text, without normalisation."""
    service = await used(body, models)

    async def answer() -> bytes:
        if not body.prompt:
            return compact_json({"embedding": []})
        ids = [
            _cut(one, service, body.options.num_ctx)
            for one in await tokens(service, [body.prompt[: longest_text(service.engine)]])
        ]
        vectors = await service.embed(ids, _call(request), "prompt", normalize=False)
        return compact_json({"embedding": vectors[0].tolist()})

    return Response(await unless_gone(request, answer()), media_type="application/json")


def _call(request: Request) -> Call:
    return Call(request.state.client, f"ollama-{uuid.uuid4().hex}", timeout=shortest_timeout(request, None))


def _cut(ids: list[int], service: Service, num_ctx: int | None) -> list[int]:
    """The tokens that have room; those that the file adds at a text's end stay at the end."""
    longest = service.engine.max_model_len if num_ctx is None else min(num_ctx, service.engine.max_model_len)
    if len(ids) <= longest:
        return ids
    added = service.engine.tokenize("")
    last = added[-1:] if added[-1:] == ids[-1:] else []
    return ids[: longest - len(last)] + last


def _answer(head: dict[str, Any], vectors: NDArray[np.float32], numbers: dict[str, int]) -> bytes:
    return compact_json(head | {"embeddings": vectors.tolist()} | numbers)
