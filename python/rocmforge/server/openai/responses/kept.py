"""Stored answers of `/v1/responses`, and those in progress."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rocmforge.server.chat.toolset import ToolSet
from rocmforge.server.errors import ApiError
from rocmforge.server.http.query import known_query
from rocmforge.server.http.streaming import EVENT_STREAM, named_event
from rocmforge.server.openai.responses.body import Includable
from rocmforge.server.openai.responses.output import OutputItems
from rocmforge.server.openai.responses.stored import Stored

router = APIRouter(tags=["OpenAI"], dependencies=[Depends(known_query)])


class Include:
    """Further parts that clients may ask for. An answer already has them, or has nothing of the kind."""

    def __init__(
        self,
        include: Annotated[list[str] | None, Query()] = None,
        brackets: Annotated[list[str] | None, Query(alias="include[]")] = None,
    ) -> None:
        for each in (*(include or ()), *(brackets or ())):
            if each not in get_args(Includable):
                expected = ", ".join(get_args(Includable))
                raise ApiError(400, f"include: got {each!r}, expected some of {expected}", param="include")


Included = Annotated[Include, Depends()]


@router.get("/v1/responses/{response_id}", response_model=None)
async def retrieve_response(
    response_id: str,
    request: Request,
    store: Stored,
    _included: Included,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
    include_obfuscation: bool | None = None,  # noqa: ARG001 - events have no padding
) -> Response:
    """A stored answer; with `stream`, its events after a number."""
    if starting_after is not None and not stream:
        raise ApiError(400, "starting_after: got it without stream, expected both", param="starting_after")
    response = store.get(request.state.client, response_id).response
    if not stream:
        return JSONResponse(response)
    return StreamingResponse(
        _events(response, -1 if starting_after is None else starting_after), 200, None, EVENT_STREAM
    )


async def _events(response: dict[str, Any], after: int) -> AsyncGenerator[bytes, None]:
    for number, told in enumerate(_told(response)):
        if number > after:
            yield named_event(told | {"sequence_number": number})


def _told(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = response | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    output = OutputItems(ToolSet())
    for item in response["output"]:
        yield from output.replay(item)
    kind = "completed" if response["status"] == "completed" else "incomplete"
    yield {"type": f"response.{kind}", "response": response}


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, request: Request, store: Stored) -> dict[str, Any]:
    """Deletes a stored answer."""
    store.delete(request.state.client, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, request: Request, store: Stored) -> dict[str, Any]:
    """Cancels a streamed answer; no effect on a finished one."""
    running = store.running(request.state.client, response_id)
    return store.get(request.state.client, response_id).response if running is None else await running.cancel()


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    request: Request,
    store: Stored,
    _included: Included,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> dict[str, Any]:
    """The items of the request that was answered."""
    items: Sequence[dict[str, Any]] = store.get(request.state.client, response_id).input
    if order == "desc":
        items = items[::-1]
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(400, f"after: got {after!r}, expected the id of an item", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": len(items) > limit}
