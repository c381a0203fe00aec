"""`/v1/rerank`, in the form of Jina, Cohere and vLLM."""

import asyncio
import uuid
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field

from rocmforge.server.bodies import Text
from rocmforge.server.requests import MODEL_MEANING, QueueBody, Served, check_limit
from rocmforge.server.streaming import unless_gone

router = APIRouter(tags=["Rerank"])


class RerankRequest(QueueBody):
    """The body of `/v1/rerank`."""

    model: str | None = Field(None, description=MODEL_MEANING)
    query: str = Field(description="A question.")
    documents: list[Text] = Field(min_length=1, description="Texts that may answer it.")
    top_n: int | None = Field(None, ge=1, description="Only so many of the most relevant ones; by default all.")
    return_documents: bool = Field(default=True, description="Whether the answer has the texts as well.")
    user: str | None = Field(None, description="For the client's own records; it has no effect.")


@router.post("/v1/rerank")
async def rerank(body: RerankRequest, request: Request, models: Served) -> dict[str, Any]:
    """Orders texts by how relevant they are to a query, by a model that ranks."""
    service = await models.use(body.model)
    check_limit("documents", len(body.documents), service.config.max_prompts, "max_prompts")
    id_ = f"rerank-{uuid.uuid4().hex}"

    async def answer() -> dict[str, Any]:
        prompts = await asyncio.to_thread(service.engine.rank_prompts, body.query, body.documents)
        scores = (await service.embed(prompts, body.call(request, id_), pooling="rank"))[:, 0].tolist()
        # Equal ones stay in their order.
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
        if body.return_documents:
            for result in results:
                result["document"] = {"text": body.documents[result["index"]]}
        count = sum(map(len, prompts))
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"id": id_, "model": body.model or service.names[0], "usage": usage, "results": results}

    return await unless_gone(request, answer())
