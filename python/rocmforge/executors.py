"""Where the work of a request runs that would hold up the event loop: texts to tokenise, grammars to compile."""

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from rocmforge._rocmforge import Accepted, CancelScope, Inbox

P = ParamSpec("P")
T = TypeVar("T")

EXECUTOR: ContextVar[Executor | None] = ContextVar("EXECUTOR", default=None)
"""Where the work of the current task's request runs; `None` is asyncio's own pool."""


async def to_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns what the function returns, which runs where the current request's work does.

    Cancelling the task cancels work that has not begun, and stops the tokenising of a long text.
    """
    scope = CancelScope()
    call = functools.partial(copy_context().run, function, *args, **kwargs)
    try:
        return await asyncio.get_running_loop().run_in_executor(EXECUTOR.get(), scope.run, call)
    finally:
        scope.cancel()


async def submit_on_thread(inbox: Inbox, *prompt: Any, **options: Any) -> Accepted:
    """Submits a request on a thread; it is aborted if the task is cancelled meanwhile."""
    left = threading.Event()
    done: list[Accepted] = []

    def work() -> None:
        done.append(inbox.submit(*prompt, **options))
        if left.is_set():
            inbox.forget(done[0].key)

    try:
        await to_thread(work)
    except asyncio.CancelledError:
        left.set()
        # A submission that has just ended either aborts its request itself or has added it to the list.
        for accepted in done:
            inbox.forget(accepted.key)
        raise
    return done[0]
