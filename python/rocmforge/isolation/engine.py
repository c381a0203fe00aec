"""The engine of a child process, with the methods of `Engine` and `Inbox`."""

import asyncio
import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import Accepted, PoolingParams, RemoteInbox, SamplingParams, Tokenizer
from rocmforge.errors import InvalidRequestError
from rocmforge.isolation.supervisor import Supervisor
from rocmforge.prompts import Prompt, TokenIds
from rocmforge.stats import BlockColumns, MemoryUsage, RequestRecord, ResolvedConfig, Stats

if TYPE_CHECKING:
    from concurrent.futures import Future


class IsolatedEngine:
    """One loaded model in a child process. What it takes and raises is as for `Engine`.

    While there is no child, because it died and another one is being started, what needs it raises `EngineDeadError`;
    what the child tells when it comes up is known all the time.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._model = supervisor.model

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer, which the parent has for itself."""
        no_tokenizer = self._supervisor.loaded.no_tokenizer
        if no_tokenizer is not None:
            raise InvalidRequestError(*no_tokenizer.args)
        return Tokenizer(self._model)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or has died too often."""
        return self._supervisor.is_over

    @property
    def was_closed(self) -> bool:
        """Whether `close` was called."""
        return self._supervisor.was_closed

    @property
    def is_restarting(self) -> bool:
        """Whether its process died and the next one is not there yet."""
        return self._supervisor.is_restarting

    @property
    def restarts(self) -> dict[str, int]:
        """How often a process was replaced, by reason."""
        return dict(self._supervisor.restarts)

    def inbox(
        self, event_loop: asyncio.AbstractEventLoop | None = None, callback: Callable[[], object] | None = None
    ) -> "IsolatedInbox":
        """Returns a queue on which outputs arrive."""
        self._supervisor.check_process()
        tokenizer = None if self._supervisor.loaded.no_tokenizer is not None else self.tokenizer
        return IsolatedInbox(self._supervisor, self._supervisor.outputs.inbox(tokenizer, event_loop, callback))

    def prepare(self, prompt: Prompt, params: SamplingParams | PoolingParams) -> list[int]:
        """Token ids of a prompt that can be served with these parameters."""
        answer: list[int] = self._call("prepare", prompt, params)
        return answer

    def abort(self, request_id: str) -> bool:
        """Ends a request by name."""
        answer: bool = self._call("abort", request_id)
        return answer

    def config(self) -> ResolvedConfig:
        """The resolved configuration."""
        return self._supervisor.loaded.config.copy()

    def sampling_defaults(self) -> dict[str, Any]:
        """The settings that the file recommends."""
        return dict(self._supervisor.loaded.sampling_defaults)

    def stats(self) -> Stats:
        """Gauges and counters; the counters begin anew with each process."""
        return self._supervisor.stats()

    def record(self, request_id: str) -> RequestRecord | None:
        """How the last finished request of that id ended."""
        answer: RequestRecord | None = self._call("record", request_id)
        return answer

    def waiting(self) -> list[tuple[str, str]]:
        """The waiting requests, and why each waits."""
        answer: list[tuple[str, str]] = self._call("waiting")
        return answer

    def memory(self) -> MemoryUsage:
        """Bytes held on the device; none while there is no child."""
        return self._supervisor.memory()

    def block_map(self) -> BlockColumns:
        """An array per field of a block."""
        answer: BlockColumns = self._call("block_map")
        return answer

    def state_map(self) -> BlockColumns:
        """An array per field of a slot of recurrent states."""
        answer: BlockColumns = self._call("state_map")
        return answer

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes."""
        answer: bool = self._call("reset_prefix_cache")
        return answer

    def record_kv_events(self, max_events: int) -> None:
        """Begins to log what comes into the prefix cache and what goes, in this process and in those that follow."""
        self._supervisor.record_kv_events(max_events)

    def stop_kv_events(self) -> None:
        """Ends that log."""
        self._supervisor.stop_kv_events()

    def take_kv_events(self) -> list[tuple[Any, ...] | None]:
        """Takes the events since the last call; those of a process that has died are lost."""
        answer: list[tuple[Any, ...] | None] = self._call("take_kv_events")
        return answer

    def prompt_logits(self, prompt_token_ids: TokenIds) -> NDArray[np.float32]:
        """Logits at every position."""
        answer: NDArray[np.float32] = self._call("prompt_logits", prompt_token_ids)
        return answer

    def check_integrity(self) -> None:
        """Checks the invariants of KV cache and scheduler."""
        self._call("check_integrity")

    def describe(self) -> str:
        """Says which device is used, and which kernel serves which tensors."""
        return self._supervisor.loaded.description

    def close(self) -> None:
        """Closes the engine and ends its process."""
        self._supervisor.close()

    def discard(self) -> None:
        """Ends its process at once: what the end of the interpreter does, and of an engine that nobody closes."""
        self._supervisor.discard()

    def _call(self, name: str, *arguments: object) -> Any:
        return self._supervisor.call(name, *arguments).result()


class IsolatedInbox:
    """Hands requests to the child and collects their outputs."""

    def __init__(self, supervisor: Supervisor, remote: RemoteInbox) -> None:
        self._supervisor = supervisor
        self._remote = remote
        # For an inbox that nobody closes: what it waits for ends.
        weakref.finalize(self, _close, supervisor, remote).atexit = False
        self.ready = remote.ready
        self.wait = remote.wait
        self.take = remote.take

    @property
    def num_tokens(self) -> int:
        """Generated tokens of the requests that are still here."""
        return self._remote.num_tokens

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        client: str | None = None,
        final_only: bool = False,
    ) -> Accepted:
        """Hands a request to the child and waits until it has taken it."""
        key = self._remote.expect(params, final_only=final_only)
        try:
            answer = self._start(key, prompt, params, request_id, priority, timeout, cache_salt, client)
            return _accepted(key, answer.result())
        except BaseException:
            self.forget(key)
            raise

    async def submit_soon(
        self,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109 - the request's, not this call's
        cache_salt: str | None = None,
        client: str | None = None,
    ) -> Accepted:
        """Does what `submit` does while the event loop goes on, even where the child hangs."""
        key = self._remote.expect(params)
        try:
            answer = self._start(key, prompt, params, request_id, priority, timeout, cache_salt, client)
            return _accepted(key, await asyncio.wrap_future(answer))
        except BaseException:
            self.forget(key)
            raise

    def forget(self, key: int) -> None:
        """Aborts a request, unless it has finished."""
        if self._remote.forget(key):
            self._supervisor.tell("forget", key)

    def close(self) -> None:
        """Aborts all requests that have not finished."""
        _close(self._supervisor, self._remote)

    def _start(self, key: int, prompt: Prompt, *arguments: object) -> "Future[tuple[str, list[int]]]":
        return self._supervisor.call("submit", key, prompt, *arguments)


def _accepted(key: int, answer: tuple[str, list[int]]) -> Accepted:
    return Accepted(key, *answer)


def _close(supervisor: Supervisor, remote: RemoteInbox) -> None:
    for key in remote.close():
        supervisor.tell("forget", key)
