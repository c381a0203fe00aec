"""Answers to an operator: whether it lives, whether it is ready, and what the engine does."""

import base64
import dataclasses
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from numpy.typing import NDArray
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from rocmforge import __version__
from rocmforge.executors import to_thread
from rocmforge.server.errors import ApiError, short
from rocmforge.server.http.reading import BodyRoute
from rocmforge.server.requests import OPERATOR, AllModels
from rocmforge.server.service import Service

router = APIRouter(tags=["Operation"], route_class=BodyRoute)

BLOCK_STATES = ("free", "cached", "owned")


def _asked(
    models: AllModels, model: Annotated[str | None, Query(description="A name of `/v1/models`.")] = None
) -> Service:
    return models.loaded(model)


Asked = Annotated[Service, Depends(_asked)]
"""The query names a model that is loaded; the only model needs no name."""


@router.get("/live")
async def live() -> dict[str, str]:
    """200 while the process runs; needs no key."""
    return {"status": "ok"}


@router.get("/health")
async def health(models: AllModels) -> Response:
    """200 if the model can generate (or embed), otherwise 503."""
    if (reason := await models.ready()) is not None:
        return JSONResponse({"status": "unavailable", "reason": reason}, 503, {"Retry-After": "5"})
    return JSONResponse({"status": "ok" if models.services else "sleeping"})


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of rocmforge."""
    return {"version": __version__}


@router.get("/metrics", dependencies=[OPERATOR])
async def metrics(models: AllModels) -> Response:
    """Metrics for Prometheus."""
    return Response(models.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/engine/stats", dependencies=[OPERATOR])
async def stats(service: Asked) -> dict[str, Any]:
    """Gauges and counters of the engine."""
    return dataclasses.asdict(service.engine.stats())


@router.get("/v1/engine/memory", dependencies=[OPERATOR])
async def memory(service: Asked) -> dict[str, int]:
    """Bytes on the device by purpose, their sum, and weights in the host's memory."""
    usage = service.engine.memory()
    return dataclasses.asdict(usage) | {"total": usage.total}


@router.get("/v1/engine/blocks", dependencies=[OPERATOR])
async def blocks(service: Asked, packed: bool = False) -> dict[str, Any]:
    """The blocks of the KV cache by columns: state (an index of `states`), number of owners, idle seconds.

    `state_slots` has the same of the slots of recurrent states. With `packed=true` a column is the base64 of an array,
    and values that are too large for it are its largest: `state` and `owners` of bytes, `idle_deciseconds` of 16-bit
    numbers, little-endian.
    """
    # An engine in a child process may take its time.
    maps = await to_thread(lambda: (service.engine.block_map(), service.engine.state_map()))
    of_blocks, of_slots = map(_packed_columns if packed else _columns, maps)
    return {"states": BLOCK_STATES, "num_blocks": len(maps[0])} | of_blocks | {"state_slots": of_slots}


@router.get("/v1/engine/requests")
async def running_requests(request: Request, service: Asked) -> dict[str, Any]:
    """The client's requests to the engine that have not ended, the oldest first."""
    waiting = await service.waiting_reasons()
    running = service.running_for(request.state.client)
    return {"requests": [each.progress() | {"waiting_for": waiting.get(each.call.id)} for each in running]}


@router.get("/v1/engine/requests/{request_id}")
async def request_record(request_id: str, request: Request, service: Asked) -> dict[str, Any]:
    """How one of the client's requests ended; kept for some minutes."""
    is_own = service.has_ended_for(request.state.client, request_id)
    record = await to_thread(service.engine.record, request_id) if is_own else None
    if record is None:
        raise ApiError(
            404,
            f"request: got {short(request_id)}, expected the id of one that ended in the last {_retention(service)}",
        )
    return dataclasses.asdict(record)


def _columns(table: NDArray[np.void]) -> dict[str, Any]:
    return {
        "state": table["state"].tolist(),
        "owners": table["owners"].tolist(),
        "hashed": table["hashed"].tolist(),
        "idle_seconds": table["idle_seconds"].round(3).tolist(),
    }


def _packed_columns(table: NDArray[np.void]) -> dict[str, Any]:
    return {
        "state": _packed(table["state"], "u1"),
        "owners": _packed(table["owners"], "u1"),
        "idle_deciseconds": _packed(table["idle_seconds"] * 10, "<u2"),
    }


def _packed(column: NDArray[Any], kind: str) -> str:
    return base64.b64encode(column.clip(0, np.iinfo(kind).max).astype(kind).tobytes()).decode()


def _retention(service: Asked) -> str:
    return f"{service.engine.config()['retention']:g} s"
