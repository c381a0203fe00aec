"""Reranking and scoring of texts, in the formats of Jina, Cohere and vLLM."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from fastapi import APIRouter, Request
from pydantic import AliasChoices, Field

from rocmforge.executors import to_thread
from rocmforge.server.bodies import Body, Text
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import unless_gone
from rocmforge.server.ignored import RECORDS
from rocmforge.server.lengths import check_length
from rocmforge.server.requests import MODEL_MEANING, QueueBody, Served, check_limit
from rocmforge.server.service import Service

router = APIRouter(tags=["Rerank"], route_class=BodyRoute)


class Document(Body):
    """A document with a text; the answer repeats its other fields."""

    model_config = Body.model_config | {"extra": "allow"}

    text: Text


class RankingBody(QueueBody):
    """A query and documents."""

    ignored: ClassVar[Mapping[str, str]] = {"user": RECORDS}

    model: str | None = Field(None, description=MODEL_MEANING)
    query: str = Field(description="A question.")
    documents: list[Text | Document] = Field(
        min_length=1, description="Texts that may answer it, or objects with a `text`."
    )
    top_n: int | None = Field(None, ge=1, description="Number of most relevant documents to return; by default all.")

    def texts(self) -> list[str]:
        """Returns the texts of the documents."""
        return [each if isinstance(each, str) else each.text for each in self.documents]


class RerankRequest(RankingBody):
    """The body of `/v1/rerank` and `/rerank`."""

    return_documents: bool = Field(default=True, description="If true, the answer includes the texts.")
    rank_fields: list[Literal["text"]] | None = Field(None, description="The field of the documents to rank by.")
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Maximum tokens to read of each document.")


class CohereRerankRequest(RankingBody):
    """The body of `/v2/rerank`."""

    max_tokens_per_doc: int = Field(4096, ge=1, description="Maximum tokens to read of each document.")


class ScoreRequest(QueueBody):
    """The body of `/v1/score` and `/score`."""

    ignored: ClassVar[Mapping[str, str]] = {"user": RECORDS}

    model: str | None = Field(None, description=MODEL_MEANING)
    text_1: Text | list[Text] = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"),
        description="A text, or as many as `text_2` has; also as `queries` or `data_1`.",
    )
    text_2: Text | list[Text] = Field(
        validation_alias=AliasChoices("text_2", "documents", "items", "data_2"),
        description="Texts to compare with it; also as `documents`, `items` or `data_2`.",
    )

    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of texts.

        Raises:
            ApiError: The numbers of texts do not match.
        """
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if not second or len(first) not in (1, len(second)):
            expected = "one text, or as many as text_2"
            raise ApiError(
                400, f"text_1: got {len(first)} for {len(second)} of text_2, expected {expected}", param="text_1"
            )
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))


@router.post("/v1/rerank")
@router.post("/rerank")
async def rerank(body: RerankRequest, request: Request, models: Served) -> dict[str, Any]:
    """Orders texts by their relevance to a query, with a ranking model."""
    service = await models.use(body.model)
    found = await _ranked(body, request, service, body.max_tokens_per_doc)
    if body.return_documents:
        for result in found.results:
            document = body.documents[result["index"]]
            result["document"] = {"text": document} if isinstance(document, str) else document.model_dump()
    usage = {"prompt_tokens": found.num_tokens, "total_tokens": found.num_tokens}
    return {"id": found.id, "model": body.model or service.names[0], "usage": usage, "results": found.results}


@router.post("/v2/rerank")
async def cohere_rerank(body: CohereRerankRequest, request: Request, models: Served) -> dict[str, Any]:
    """Orders texts by their relevance to a query, in the format of Cohere's second API."""
    service = await models.use(body.model)
    found = await _ranked(body, request, service, body.max_tokens_per_doc)
    billed = {"search_units": 1, "input_tokens": found.num_tokens}
    meta = {"api_version": {"version": "2"}, "billed_units": billed}
    return {"id": found.id, "results": found.results, "meta": meta}


@router.post("/v1/score")
@router.post("/score")
async def score(body: ScoreRequest, request: Request, models: Served) -> dict[str, Any]:
    """Scores the relevance of each pair of texts, in their order, by a model that ranks."""
    service = await models.use(body.model)
    pairs = body.pairs()
    check_limit("text_2", len(pairs), service.config.max_prompts, "max_prompts")
    id_ = f"score-{uuid.uuid4().hex}"
    scores, count = await unless_gone(request, _scores(service, pairs, body, request, id_))
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return {
        "id": id_,
        "object": "list",
        "created": int(time.time()),
        "model": body.model or service.names[0],
        "data": data,
        "usage": {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count},
    }


class _Ranking(NamedTuple):
    id: str
    results: list[dict[str, Any]]
    num_tokens: int


async def _ranked(body: RankingBody, request: Request, service: Service, most_tokens: int | None) -> _Ranking:
    """Returns the documents in their order."""
    check_limit("documents", len(body.documents), service.config.max_prompts, "max_prompts")
    id_ = f"rerank-{uuid.uuid4().hex}"

    async def answer() -> _Ranking:
        texts = body.texts()
        check_length(service.engine, "query", body.query)
        if most_tokens is not None:
            texts = await to_thread(_cut, service, texts, most_tokens)
        scores, count = await _scores(service, [(body.query, text) for text in texts], body, request, id_)
        # Equal ones stay in their order.
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        return _Ranking(id_, [{"index": index, "relevance_score": scores[index]} for index in order], count)

    return await unless_gone(request, answer())


async def _scores(
    service: Service, pairs: Sequence[tuple[str, str]], body: QueueBody, request: Request, id_: str
) -> tuple[list[float], int]:
    """Returns the score of each pair, and the number of tokens of all."""
    check_length(service.engine, "documents", *(document for _, document in pairs))
    prompts = await to_thread(_prompts, service, pairs)
    scores = (await service.embed(prompts, body.call(request, id_), "documents", pooling="rank"))[:, 0].tolist()
    return scores, sum(map(len, prompts))


def _prompts(service: Service, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Returns the prompt of each pair; prompts of one query are made together."""
    queries = {query for query, _ in pairs}
    if len(queries) == 1:
        (query,) = queries
        return service.engine.rank_prompts(query, [document for _, document in pairs])
    return [prompt for query, document in pairs for prompt in service.engine.rank_prompts(query, [document])]


def _cut(service: Service, texts: Sequence[str], most_tokens: int) -> list[str]:
    """Returns the first `length` tokens of each text."""
    tokenizer, cut = service.engine.tokenizer, []
    for text in texts:
        ids = tokenizer.encode(text, add_special=False)
        cut.append(text if len(ids) <= most_tokens else tokenizer.decode(ids[:most_tokens]))
    return cut
