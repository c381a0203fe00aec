"""Threads for clients' work off the event loop. No client can take all of them."""

import os
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from rocmforge.server.errors import ApiError

T = TypeVar("T")

# Most pieces of one client's work that may wait for a thread.
MAX_WAITING = 1024
# A thread ends after this many seconds without work.
IDLE_SECONDS = 10.0


class Threads:
    """A pool of threads that clients share in turn, each using at most half of them.

    The threads are daemons, so that the process does not wait for abandoned work when it exits.

    Args:
        count: The number of threads.
        cores: The number of cores, if it is less. A client uses threads for at most half of them.
    """

    def __init__(self, count: int, cores: int | None = None) -> None:
        self._count = count
        self._share = max(1, min(count, cores or count) // 2)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # The client whose turn is next comes first.
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._num_threads = 0
        self._num_idle = 0

    def of(self, client: str) -> Executor:
        """Returns an executor for the work of one client."""
        return _Share(self, client)

    @property
    def is_busy(self) -> bool:
        """True if work runs."""
        return self._num_threads > self._num_idle

    def submit(self, client: str, work: Callable[[], T]) -> "Future[T]":
        """Takes a piece of work.

        Raises:
            ApiError: Too much of the client's work waits.
        """
        future: Future[T] = Future()
        with self._changed:
            queue = self._waiting.setdefault(client, deque())
            if len(queue) >= MAX_WAITING:
                # Cancelled work makes room.
                queue = self._waiting[client] = deque(each for each in queue if not each[0].cancelled())
            if len(queue) >= MAX_WAITING:
                raise ApiError(
                    429,
                    f"{MAX_WAITING} requests of this client wait to be read or tokenised, which is all that may; "
                    "come back later",
                    headers={"Retry-After": "1"},
                )
            queue.append((future, work))
            self._changed.notify()
            if self._num_threads < self._count and sum(map(len, self._waiting.values())) > self._num_idle:
                self._num_threads += 1
                threading.Thread(target=self._serve, name="rocmforge-client", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            with self._changed:
                item = self._next()
                while item is None:
                    self._num_idle += 1
                    woken = self._changed.wait(IDLE_SECONDS)
                    self._num_idle -= 1
                    item = self._next()
                    if item is None and not woken:
                        self._num_threads -= 1
                        return
            client, future, work = item
            _run(future, work)
            # An idle thread must not keep the last piece of work and its result alive.
            del item, future, work
            with self._changed:
                self._running[client] -= 1
                if not self._running[client]:
                    del self._running[client]
                self._changed.notify()

    def _next(self) -> tuple[str, "Future[Any]", Callable[[], Any]] | None:
        """Returns the next piece of work of the first client that has work and is below its share."""
        for client in list(self._waiting):
            if self._running[client] >= self._share:
                continue
            queue = self._waiting[client]
            while queue:
                future, work = queue.popleft()
                if future.set_running_or_notify_cancel():
                    self._running[client] += 1
                    if queue:
                        self._waiting.move_to_end(client)
                    else:
                        del self._waiting[client]
                    return client, future, work
            del self._waiting[client]
        return None


def _run(future: "Future[Any]", work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
        future.set_exception(error)
    else:
        future.set_result(result)


class _Share(Executor):
    """An executor for one client's work."""

    def __init__(self, threads: Threads, client: str) -> None:
        self._threads = threads
        self._client = client

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Takes a piece of work."""
        return self._threads.submit(self._client, lambda: fn(*args, **kwargs))


WORK = Threads(max(4, min(16, os.cpu_count() or 1)), os.cpu_count())
"""For work that releases the GIL: tokenising, compiling grammars, calling the engine."""
READING = Threads(1)
"""For parsing large bodies, which holds the GIL; the event loop gets it after each body."""
