"""`/api/tags`, `/api/show`, `/api/ps` and `/api/version`."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from rocmforge import __version__
from rocmforge._rocmforge import inspect_gguf
from rocmforge.server.ollama.bodies import AnyJsonRoute, OllamaShowRequest, served_name
from rocmforge.server.ollama.model_file import ModelFile, model_file, plain_metadata
from rocmforge.server.requests import AllModels
from rocmforge.server.service import Service

router = APIRouter(tags=["Ollama"], route_class=AnyJsonRoute)

# The model is never unloaded.
NEVER = "9999-12-31T23:59:59Z"


@router.get("/api/tags")
async def tags(models: AllModels) -> dict[str, Any]:
    """The models that are served."""
    return {"models": [await asyncio.to_thread(_tag, models.find(name), name) for name in models.names]}


@router.get("/api/ps")
async def running_models(models: AllModels) -> dict[str, Any]:
    """The models that are loaded, with the memory that they take."""
    return {"models": [await asyncio.to_thread(_loaded, models.find(name), name) for name in models.names]}


@router.post("/api/show")
async def show(body: OllamaShowRequest, models: AllModels) -> Response:
    """Describes a model: its metadata, chat template and sampling."""
    service = models.find(served_name(models, body.model))
    return await asyncio.to_thread(_show, service, verbose=body.verbose)


@router.get("/api/version")
async def version() -> dict[str, str]:
    """The version of rocmforge."""
    return {"version": __version__}


def _tag(service: Service, name: str) -> dict[str, Any]:
    file = model_file(service.engine.model)
    return _listed(name, file) | {"modified_at": file.modified_at, "size": file.size}


def _loaded(service: Service, name: str) -> dict[str, Any]:
    engine = service.engine
    size = engine.memory().total
    return _listed(name, model_file(engine.model)) | {
        "expires_at": NEVER,
        "size": size,
        "size_vram": 0 if engine.device.startswith("CPU") else size,
        "context_length": engine.max_model_len,
    }


def _listed(name: str, file: ModelFile) -> dict[str, Any]:
    full = name if ":" in name else f"{name}:latest"
    return {"name": full, "model": full, "digest": file.digest, "details": file.details}


def _show(service: Service, *, verbose: bool) -> Response:
    engine = service.engine
    file = model_file(engine.model)
    lists = plain_metadata(inspect_gguf(engine.model)["metadata"], lists=True) if verbose else {}
    sampling = engine.recommended_sampling()
    if "repetition_penalty" in sampling:
        sampling["repeat_penalty"] = sampling.pop("repetition_penalty")
    return JSONResponse(
        {
            "license": file.info.get("general.license", ""),
            "parameters": "\n".join(f"{name:30} {value}" for name, value in sampling.items()),
            "template": service.chat_template or file.info.get("tokenizer.chat_template", ""),
            "details": file.details,
            "model_info": file.info | lists,
            "capabilities": _capabilities(service),
            "modified_at": file.modified_at,
        }
    )


def _capabilities(service: Service) -> list[str]:
    replies = service.replies
    extra = {"tools": replies.chat.calls is not None, "thinking": replies.thinks}
    return ["completion", *(name for name, there in extra.items() if there)]
