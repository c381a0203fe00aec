"""`/v1/models`."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from rocmforge.executors import to_thread
from rocmforge.server.answers.generation import Client
from rocmforge.server.anthropic.models import describe as for_anthropic
from rocmforge.server.http.access import shown_path
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.models.model import Model
from rocmforge.server.requests import AllModels
from rocmforge.server.service import Service

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute)

# The header by which clients of Anthropic's API tell themselves.
ANTHROPIC = "anthropic-version"


def describe(model: Model, name: str, client: Client, *, chats: bool | None) -> dict[str, Any]:
    """Returns one model as OpenAI lists it, with its context length and its capabilities.

    Fields that need a loaded model are `null` before. The status is that of llama.cpp's router.

    Args:
        model: The model.
        name: One of its names.
        client: The client that asks.
        chats: True if the model takes conversations; `None` if that is not known.
    """
    length = None if model.service is None else model.service.engine.max_model_len
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "rocmforge",
        "root": shown_path(model.spec.path, client),
        # Metrics have the first name of a model.
        "parent": None if name == model.name else model.name,
        "max_model_len": length,
        "context_length": length,
        "chats": chats,
        "capabilities": None if model.service is None else capabilities(model.service),
        "architecture": {"input_modalities": modalities(model.service), "output_modalities": ["text"]},
        "status": model.status(),
    }


def modalities(service: Service | None) -> list[str]:
    """Returns what a model reads; of one that is not loaded, only text is known."""
    return ["text"] if service is None or service.engine.mmproj is None else ["text", "image"]


def capabilities(service: Service) -> list[str]:
    """Returns the capabilities of a model, by Ollama's names."""
    if not service.generates:
        return ["rerank" if service.engine.config()["pooling"] == "rank" else "embedding"]
    chat = service.replies.chat
    sees = service.engine.mmproj is not None
    extra = {"vision": sees, "tools": chat.calls is not None, "thinking": service.replies.thinks}
    return ["completion", *(name for name, there in extra.items() if there)]


@router.get("/v1/models")
async def list_models(
    models: AllModels,
    request: Request,
    client_version: Annotated[str | None, Query(description="Codex sends its version.")] = None,
) -> dict[str, Any]:
    """Returns the served models, loaded or not; in Anthropic's format for its clients."""
    if ANTHROPIC in request.headers:
        data = [for_anthropic(models.find(name), name) for name in models.names]
        return {"data": data, "first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
    chats = await to_thread(lambda: {model: model.chats() for model in models.all})
    listed = ((models.find(name), name) for name in models.names)
    client = request.state.client
    data = [describe(model, name, client, chats=chats[model]) for model, name in listed]
    # Codex logs an error at each start if its own list is missing. It is empty: an entry would replace the system
    # prompt that Codex has for models that it does not know.
    own: dict[str, Any] = {} if client_version is None else {"models": []}
    return {"object": "list", "data": data} | own


@router.get("/v1/models/{model:path}")
async def retrieve_model(model: str, models: AllModels, request: Request) -> dict[str, Any]:
    """One served model."""
    found = models.find(model)
    if ANTHROPIC in request.headers:
        return for_anthropic(found, model)
    return describe(found, model, request.state.client, chats=await to_thread(found.chats))
