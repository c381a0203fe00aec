"""`/v1/models`."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from rocmforge.server.model import Model
from rocmforge.server.requests import AllModels

router = APIRouter(tags=["OpenAI"])

# The header by which clients of Anthropic's API tell themselves.
ANTHROPIC = "anthropic-version"


def describe(model: Model, name: str) -> dict[str, Any]:
    """One model as OpenAI lists it, with vLLM's fields, and its status as llama.cpp's router has it."""
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "rocmforge",
        "root": str(model.spec.path),
        "max_model_len": None if model.service is None else model.service.engine.max_model_len,
        "status": model.status(),
    }


def _described_for_anthropic(model: Model, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


@router.get("/v1/models")
async def list_models(models: AllModels, request: Request) -> dict[str, Any]:
    """The models that are served, loaded or not; in Anthropic's form for its clients."""
    if ANTHROPIC in request.headers:
        data = [_described_for_anthropic(models.find(name), name) for name in models.names]
        return {"data": data, "first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
    return {"object": "list", "data": [describe(models.find(name), name) for name in models.names]}


@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, models: AllModels, request: Request) -> dict[str, Any]:
    """One of them."""
    if ANTHROPIC in request.headers:
        return _described_for_anthropic(models.find(model), model)
    return describe(models.find(model), model)
