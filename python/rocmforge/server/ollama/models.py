"""`/api/tags`, `/api/show`, `/api/ps`, `/api/status` and `/api/version`."""

import logging
import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from rocmforge import __version__
from rocmforge._rocmforge import inspect_gguf
from rocmforge.errors import RocmForgeError
from rocmforge.executors import to_thread
from rocmforge.parsing import ReplyFormat, find_format
from rocmforge.server.errors import ApiError
from rocmforge.server.models.model import Model
from rocmforge.server.models.registry import told
from rocmforge.server.ollama.bodies import AnyJsonRoute, OllamaShowRequest, served_name
from rocmforge.server.ollama.model_file import ModelFile, awaited_file, model_file, plain_metadata, timestamp
from rocmforge.server.requests import AllModels

router = APIRouter(tags=["Ollama"], route_class=AnyJsonRoute)

logger = logging.getLogger("rocmforge.server")

# A model expires then that stays loaded for ever, or for longer than dates can say.
NEVER = "9999-12-31T23:59:59Z"
MAX_SECONDS = 1e9


@router.get("/api/tags")
async def tags(models: AllModels) -> dict[str, Any]:
    """The models that are served, loaded or not, without those whose file cannot be read."""
    files = {model: await to_thread(_file, model) for model in models.all}
    return {
        "models": [
            _listed(name, file) | {"modified_at": file.modified_at, "size": file.size}
            for name in models.names
            if (file := files[models.find(name)]) is not None
        ]
    }


@router.get("/api/ps")
async def running_models(models: AllModels) -> dict[str, Any]:
    """The models that are loaded, with the memory that they take."""
    loaded = [model for model in models.all if model.service is not None]
    return {"models": [one for model in loaded for one in await to_thread(_loaded, model)]}


@router.post("/api/show")
async def show(body: OllamaShowRequest, models: AllModels) -> Response:
    """Describes a model: its metadata and chat template, and its sampling where it is loaded."""
    model = models.find(served_name(models, body.model))
    return await to_thread(_show, model, verbose=body.verbose)


@router.get("/api/version")
async def version() -> dict[str, str]:
    """The version of rocmforge."""
    return {"version": __version__}


@router.get("/api/status")
async def status() -> dict[str, Any]:
    """Reports that models of Ollama's cloud are not available."""
    return {"cloud": {"disabled": True, "source": "config"}}


def _file(model: Model) -> ModelFile | None:
    if model.file is None:
        return awaited_file(model.name, model.created)
    try:
        return model_file(model.file)
    except (RocmForgeError, OSError) as error:
        logger.warning("model %s: its file cannot be read: %s", model.name, error)
        return None


def _loaded(model: Model) -> list[dict[str, Any]]:
    service = model.service
    if service is None:
        return []
    size, left = service.engine.memory().total, model.seconds_left()
    more = {
        "expires_at": NEVER if left is None or left > MAX_SECONDS else timestamp(time.time() + left),
        "size": size,
        "size_vram": 0 if service.engine.device.startswith("CPU") else size,
        "context_length": service.engine.max_model_len,
    }
    file = model_file(service.engine.model)
    return [_listed(name, file) | more for name in model.spec.names]


def _listed(name: str, file: ModelFile) -> dict[str, Any]:
    full = name if ":" in name else f"{name}:latest"
    return {"name": full, "model": full, "digest": file.digest, "details": file.details}


def _show(model: Model, *, verbose: bool) -> Response:
    if model.file is None:
        raise ApiError(
            409, f"model: {model.name!r} is not on this machine, expected one that is; ask it something first"
        )
    try:
        file = model_file(model.file)
    except (RocmForgeError, OSError) as error:
        logger.warning("model %s: its file cannot be read: %s", model.name, error)
        raise ApiError(500, f"model: {told(model, error)}", param="model") from error
    own, for_tools = (file.info.get(f"tokenizer.chat_template{name}", "") for name in ("", ".tool_use"))
    template = model.chat_template or own
    lists = plain_metadata(inspect_gguf(model.file)["metadata"], lists=True) if verbose else {}
    sampling = {} if model.service is None else model.service.engine.recommended_sampling()
    sees = model.service is not None and model.service.engine.mmproj is not None
    if "repetition_penalty" in sampling:
        sampling["repeat_penalty"] = sampling.pop("repetition_penalty")
    return JSONResponse(
        {
            "license": file.info.get("general.license", ""),
            "parameters": "\n".join(f"{name:30} {value}" for name, value in sampling.items()),
            "template": template,
            "details": file.details,
            "model_info": file.info | lists,
            "capabilities": _capabilities(file, model.chat_template or own + for_tools, sees=sees),
            "modified_at": file.modified_at,
        }
    )


def _capabilities(file: ModelFile, template: str, *, sees: bool) -> list[str]:
    if file.tasks and "generate" not in file.tasks:
        return ["embedding"]
    replies = ReplyFormat(template, find_format(template))
    extra = {"vision": sees, "tools": replies.chat.calls is not None, "thinking": replies.thinks}
    return ["completion", *(name for name, there in extra.items() if there)]
