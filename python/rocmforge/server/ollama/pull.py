"""`/api/pull`, and the paths by which Ollama clients change the models, which only the operator may do here."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from rocmforge.server.answers.generation import Generations
from rocmforge.server.errors import ApiError
from rocmforge.server.errors import body as error_body
from rocmforge.server.http.streaming import StreamResponse, compact_json
from rocmforge.server.models.model import Model
from rocmforge.server.models.registry import Models, RequestModels
from rocmforge.server.ollama.bodies import AnyJsonRoute, OllamaPullRequest, served_name
from rocmforge.server.requests import Served

router = APIRouter(tags=["Ollama"], route_class=AnyJsonRoute)

# Seconds between two lines about a download.
PROGRESS_SECONDS = 0.1
# Ollama clients name a model of the hub like this.
_HUB = ("hf.co/", "huggingface.co/")


@router.post("/api/pull")
async def pull(body: OllamaPullRequest, request: Request, models: Served) -> Response:
    """Downloads a served model, unless it is on this machine, and loads it."""
    model = models.registry.find(_served(models.registry, body.model))
    if body.stream:
        lines = _lines(models, model, request.url.path)
        return StreamResponse(lines, Generations([]), "application/x-ndjson")
    if model.file is None:
        await models.use(model.name)
    return JSONResponse({"status": "success"})


async def _operators(request: Request) -> Response:
    """Always an error, since only the operator chooses the models."""
    raise ApiError(
        403,
        f"{request.url.path}: which models there are is the operator's choice here: by `rocmforge serve`, its "
        "[models.NAME] tables and `rocmforge pull`",
    )


for _path, _method in (
    ("/api/create", "POST"),
    ("/api/copy", "POST"),
    ("/api/push", "POST"),
    ("/api/delete", "DELETE"),
):
    router.add_api_route(_path, _operators, methods=[_method])


@router.post("/api/blobs/{digest}")
async def _blobs(digest: str, request: Request) -> Response:  # noqa: ARG001 - the path's parameter is described
    """Always an error, since only the operator chooses the models."""
    return await _operators(request)


def _served(models: Models, name: str) -> str:
    """Returns the served name of a model that a client names, also by its hub name."""
    for known in models.names:
        path = str(models.find(known).spec.path)
        if any(name == host + path.removeprefix("hf:") for host in (*_HUB, "hf:")) and path.startswith("hf:"):
            return known
    return served_name(models, name)


async def _lines(models: RequestModels, model: Model, path: str) -> AsyncGenerator[bytes, None]:
    """Reports the progress of a download, and at the end its success or the reason for its failure."""
    yield _line({"status": "pulling manifest"})
    using = asyncio.ensure_future(_there(models, model))
    try:
        while not using.done():
            await asyncio.wait({using}, timeout=PROGRESS_SECONDS)
            done, total = model.progress
            if model.is_downloading and total:
                layer = f"sha256:{model.name}"
                yield _line({"status": f"pulling {model.name}", "digest": layer, "total": total, "completed": done})
        using.result()
        for status in ("verifying sha256 digest", "writing manifest", "success"):
            yield _line({"status": status})
    except ApiError as error:
        yield _line(error_body(path, error))
    finally:
        using.cancel()


async def _there(models: RequestModels, model: Model) -> None:
    if model.file is None:
        await models.use(model.name)


def _line(value: dict[str, Any]) -> bytes:
    return compact_json(value) + b"\n"
