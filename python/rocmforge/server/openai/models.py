"""`/v1/models`."""

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from rocmforge.server.requests import AllModels
from rocmforge.server.service import Service

router = APIRouter(tags=["OpenAI"])

# The header by which clients of Anthropic's API tell themselves.
ANTHROPIC = "anthropic-version"


def describe(service: Service, name: str) -> dict[str, Any]:
    """One model as OpenAI lists it, with vLLM's fields."""
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "rocmforge",
        "root": str(service.engine.model),
        "max_model_len": service.engine.max_model_len,
    }


def _described_for_anthropic(service: Service, name: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(service.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


@router.get("/v1/models")
async def list_models(models: AllModels, request: Request) -> dict[str, Any]:
    """The models that are served; in Anthropic's form for its clients."""
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
