"""`/v1/models`."""

from typing import Any

from fastapi import APIRouter

from rocmforge.server.requests import AllModels
from rocmforge.server.service import Service

router = APIRouter(tags=["OpenAI"])


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


@router.get("/v1/models")
async def list_models(models: AllModels) -> dict[str, Any]:
    """The models that are served."""
    return {"object": "list", "data": [describe(models.find(name), name) for name in models.names]}


@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, models: AllModels) -> dict[str, Any]:
    """One of them."""
    return describe(models.find(model), model)
