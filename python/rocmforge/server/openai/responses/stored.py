"""Stored answers, so that a later request can continue from them by id."""

import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from rocmforge.server.answers.generation import Client
from rocmforge.server.errors import ApiError

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An answer with its conversation."""

    response: dict[str, Any]
    before: list[Item]
    """Items of the conversation before this request."""
    input: list[Item]
    """Items of this request."""

    def conversation(self) -> list[Item]:
        """Returns all items; those of the answer come last."""
        return [*self.before, *self.input, *self.response["output"]]


class Running(Protocol):
    """An answer in progress."""

    async def cancel(self) -> dict[str, Any]:
        """Cancels the answer; returns the part that exists."""


class _Shelf:
    """The answers of one client, ordered by last use."""

    def __init__(self) -> None:
        self.entries: OrderedDict[str, bytes] = OrderedDict()
        self.items: dict[str, str] = {}
        """The stored answer of each of the conversation's items."""
        self._own: dict[str, list[str]] = {}
        self.bytes = 0

    def put(self, stored: StoredResponse, data: bytes) -> None:
        id_ = stored.response["id"]
        own = [item["id"] for item in (*stored.input, *stored.response["output"]) if "id" in item]
        self._own[id_] = own
        self.items |= dict.fromkeys(own, id_)
        self.entries[id_] = data
        self.bytes += len(data)

    def drop(self, id_: str) -> None:
        self.bytes -= len(self.entries.pop(id_))
        for item in self._own.pop(id_):
            if self.items.get(item) == id_:
                del self.items[item]


class ResponseStore:
    """Keeps answers in memory, separately for each client key.

    Args:
        max_responses: Maximum number of answers for each client. The least recently used answers are dropped first.
        max_bytes: Maximum bytes of a client's answers with their conversations, as JSON.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._running: dict[tuple[str | None, str], Running] = {}
        self._shelves: defaultdict[str | None, _Shelf] = defaultdict(_Shelf)

    def put(self, client: Client, stored: StoredResponse) -> None:
        """Keeps an answer, unless it is larger than the limit."""
        data = json.dumps(asdict(stored), ensure_ascii=False, separators=(",", ":")).encode()
        if len(data) > self._max_bytes:
            return
        shelf = self._shelves[client.salt]
        shelf.put(stored, data)
        while len(shelf.entries) > self._max_responses or shelf.bytes > self._max_bytes:
            shelf.drop(next(iter(shelf.entries)))

    def get(self, client: Client, id_: str, param: str | None = None, status: int = 404) -> StoredResponse:
        """Returns a stored answer.

        Raises:
            ApiError: The client has no stored answer with this id.
        """
        shelf = self._shelves[client.salt]
        if id_ not in shelf.entries:
            raise self._missing(id_, param, status)
        shelf.entries.move_to_end(id_)
        return StoredResponse(**json.loads(shelf.entries[id_]))

    def begin(self, client: Client, id_: str, answer: Running) -> None:
        """Registers an answer in progress, so that it can be cancelled."""
        self._running[client.salt, id_] = answer

    def end(self, client: Client, id_: str) -> None:
        """Removes an answer that is no longer in progress."""
        del self._running[client.salt, id_]

    def running(self, client: Client, id_: str) -> Running | None:
        """Returns a client's answer in progress."""
        return self._running.get((client.salt, id_))

    def items(self, client: Client, ids: Iterable[str]) -> dict[str, Item]:
        """Returns items of stored answers and of their requests, by their ids.

        Raises:
            ApiError: No stored answer has one of them.
        """
        shelf = self._shelves[client.salt]
        found: dict[str, Item] = {}
        for id_ in ids:
            if id_ in found:
                continue
            if (response := shelf.items.get(id_)) is None:
                expected = "the id of an item of an answer that is kept"
                raise ApiError(400, f"input: got a reference to {id_!r}, expected {expected}", param="input")
            conversation = StoredResponse(**json.loads(shelf.entries[response])).conversation()
            found |= {item["id"]: item for item in conversation if "id" in item}
        return found

    def delete(self, client: Client, id_: str) -> None:
        """Deletes an answer.

        Raises:
            ApiError: The client has no stored answer with this id.
        """
        shelf = self._shelves[client.salt]
        if id_ not in shelf.entries:
            raise self._missing(id_, None, 404)
        shelf.drop(id_)

    def _missing(self, id_: str, param: str | None, status: int) -> ApiError:
        kept = f"the last {self._max_responses} within {self._max_bytes} bytes, with store: true"
        return ApiError(
            status, f"{param or 'response'}: got {id_!r}, expected the id of one that is kept ({kept})", param=param
        )


def _store(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


Stored = Annotated[ResponseStore, Depends(_store)]
"""The application's stored answers."""
