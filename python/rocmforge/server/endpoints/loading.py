"""`/models/load` and `/models/unload`, by the names that llama.cpp's router has."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import JSONResponse, Response

from rocmforge.server.answers.generation import Generations
from rocmforge.server.bodies import Body
from rocmforge.server.errors import ApiError
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.http.streaming import EVENT_STREAM, PING, StreamResponse, event
from rocmforge.server.models.model import Model
from rocmforge.server.models.registry import RequestModels
from rocmforge.server.openai.events import error_event
from rocmforge.server.requests import Served

router = APIRouter(tags=["Models"], route_class=BodyRoute)

# Seconds between two events about a load.
PROGRESS_SECONDS = 0.1


class UnloadRequest(Body):
    """The body of `/models/unload`."""

    model: str = Field(description="A name of `/v1/models`.")


class LoadRequest(UnloadRequest):
    """The body of `/models/load`."""

    stream: bool = Field(default=False, description="If true, streams progress as server-sent events.")


@router.post("/models/load")
async def load(body: LoadRequest, models: Served) -> Response:
    """Loads a model, unless it is loaded."""
    model = models.registry.find(body.model)
    if body.stream:
        return StreamResponse(_events(models, model), Generations([]), EVENT_STREAM, PING)
    await models.use(body.model)
    return JSONResponse(_told(model))


@router.post("/models/unload")
async def unload(body: UnloadRequest, models: Served) -> dict[str, Any]:
    """Unloads a model once the requests that use it have ended."""
    await models.unload(body.model)
    return _told(models.registry.find(body.model))


async def _events(models: RequestModels, model: Model) -> AsyncGenerator[bytes, None]:
    """Yields the progress of a load, and at the end its success or its error."""
    using = asyncio.ensure_future(models.use(model.name))
    try:
        while not using.done():
            yield event(_told(model))
            await asyncio.wait({using}, timeout=PROGRESS_SECONDS)
        using.result()
        yield event(_told(model))
    except ApiError as error:
        yield error_event("/models/load", error)
    finally:
        using.cancel()


def _told(model: Model) -> dict[str, Any]:
    return {"model": model.name, "status": model.status()}
