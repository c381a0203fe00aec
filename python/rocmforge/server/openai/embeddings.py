"""`/v1/embeddings`."""

import base64
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from pydantic import Field
from starlette.responses import Response

from rocmforge.executors import to_thread
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import compact_json, unless_gone
from rocmforge.server.ignored import RECORDS
from rocmforge.server.lengths import check_length
from rocmforge.server.requests import MODEL_MEANING, Prompts, QueueBody, Served, prompt_list
from rocmforge.server.service import Service

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute)


class EmbeddingRequest(QueueBody):
    """The body of `/v1/embeddings`."""

    ignored: ClassVar[Mapping[str, str]] = {"user": RECORDS}

    model: str | None = Field(None, description=MODEL_MEANING)
    input: Prompts = Field(description="Text or token ids, or a list of them.")
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="`base64`: the vector's 32-bit floats, little-endian, in base64."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="Number of leading values to keep of each vector, which is then normalised again. Only for models "
        "that were trained for it.",
    )


@router.post("/v1/embeddings")
async def create_embeddings(body: EmbeddingRequest, request: Request, models: Served) -> Response:
    """Returns a vector for each text."""
    service = await models.use(body.model)
    prompts = prompt_list("input", body.input, service)
    check_dimensions(body.dimensions, service)
    call = body.call(request, f"embd-{uuid.uuid4().hex}")

    async def answer() -> bytes:
        ids = await tokens(service, prompts)
        vectors = shortened(await service.embed(ids, call, "input"), body.dimensions)
        head = {"object": "list", "model": body.model or service.names[0]}
        # A large answer takes a while to be written.
        return await to_thread(_answer, head, vectors, body.encoding_format, sum(map(len, ids)))

    return Response(await unless_gone(request, answer()), media_type="application/json")


def check_dimensions(dimensions: int | None, service: Service) -> None:
    """Refuses more dimensions than the model's vectors have.

    Raises:
        ApiError: `dimensions` is too large.
    """
    size = service.engine.config()["embedding_size"]
    if dimensions is not None and dimensions > size:
        raise ApiError(
            400,
            f"dimensions: got {dimensions}, expected at most {size}, the length of the model's vectors",
            param="dimensions",
        )


async def tokens(service: Service, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    """Returns the token ids of all prompts, tokenised on a thread.

    Raises:
        ApiError: A text cannot fit.
    """
    check_length(service.engine, "input", *(prompt for prompt in prompts if isinstance(prompt, str)))
    tokenize = service.engine.tokenize
    return await to_thread(lambda: [tokenize(prompt) if isinstance(prompt, str) else prompt for prompt in prompts])


def shortened(vectors: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """Returns the vectors cut to this many values and normalised again; shape `[len(vectors), dimensions]`."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    cut = vectors[:, :dimensions].astype(np.float64)
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    return (cut / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _answer(head: dict[str, Any], vectors: NDArray[np.float32], encoding: str, num_tokens: int) -> bytes:
    def encoded(vector: NDArray[np.float32]) -> str | list[float]:
        if encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        values: list[float] = vector.tolist()
        return values

    data = [
        {"object": "embedding", "index": index, "embedding": encoded(vector)} for index, vector in enumerate(vectors)
    ]
    return compact_json(head | {"data": data, "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens}})
