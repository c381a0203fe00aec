"""The engine of a child process, with the methods of `Engine` and `Inbox`."""

import asyncio
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import Accepted, Image, PoolingParams, RemoteInbox, SamplingParams, Tokenizer
from rocmforge.errors import InvalidRequestError
from rocmforge.isolation.supervisor import Supervisor
from rocmforge.prompts import Prompt, TokenIds
from rocmforge.requests.options import RequestOptions
from rocmforge.stats import BlockColumns, MemoryUsage, RequestRecord, ResolvedConfig, Stats

if TYPE_CHECKING:
    from concurrent.futures import Future


class IsolatedEngine:
    """One loaded model in a child process. Arguments and errors are those of `Engine`.

    Between the end of one child and the start of the next, methods that need a child raise `EngineDeadError`. Facts
    that a child reports at its start, such as the configuration, stay available.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._model = supervisor.model

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's tokenizer, which the parent process loads itself."""
        no_tokenizer = self._supervisor.loaded.no_tokenizer
        if no_tokenizer is not None:
            raise InvalidRequestError(*no_tokenizer.args)
        return Tokenizer(self._model)

    @property
    def is_closed(self) -> bool:
        """True if it was closed, or if its process died too often."""
        return self._supervisor.is_over

    @property
    def was_closed(self) -> bool:
        """True if `close` was called."""
        return self._supervisor.was_closed

    @property
    def is_restarting(self) -> bool:
        """True if its process died and the next one is not ready."""
        return self._supervisor.is_restarting

    @property
    def restarts(self) -> dict[str, int]:
        """The number of replaced processes, by reason."""
        return dict(self._supervisor.restarts)

    def inbox(
        self, event_loop: asyncio.AbstractEventLoop | None = None, callback: Callable[[], object] | None = None
    ) -> "IsolatedInbox":
        """Returns a queue on which outputs arrive."""
        self._supervisor.check_process()
        tokenizer = None if self._supervisor.loaded.no_tokenizer is not None else self.tokenizer
        return IsolatedInbox(self._supervisor, self._supervisor.outputs.inbox(tokenizer, event_loop, callback))

    @property
    def mmproj(self) -> str | None:
        """The file of the image encoder; `None` for a model that accepts only text."""
        return self._supervisor.loaded.mmproj

    def image_tokens(self, image: Image) -> int:
        """Returns the number of tokens that an image takes in a prompt."""
        answer: int = self._call("image_tokens", image)
        return answer

    def prepare(
        self, prompt: Prompt, params: SamplingParams | PoolingParams, images: Sequence[Image] = ()
    ) -> list[int]:
        """Returns the token ids of a prompt, after a check that it can be served with these parameters."""
        answer: list[int] = self._call("prepare", prompt, params, images)
        return answer

    def abort(self, request_id: str) -> bool:
        """Aborts a request by id; true if it was active."""
        answer: bool = self._call("abort", request_id)
        return answer

    def config(self) -> ResolvedConfig:
        """Returns the resolved configuration."""
        return self._supervisor.loaded.config.copy()

    def sampling_defaults(self) -> dict[str, Any]:
        """Returns the sampling parameters that the file recommends."""
        return dict(self._supervisor.loaded.sampling_defaults)

    def stats(self) -> Stats:
        """Returns gauges and counters; the counters restart at zero with each process."""
        return self._supervisor.stats()

    def record(self, request_id: str) -> RequestRecord | None:
        """Returns the record of the last finished request with this id."""
        answer: RequestRecord | None = self._call("record", request_id)
        return answer

    def waiting(self) -> list[tuple[str, str]]:
        """Returns the waiting requests, each with its reason."""
        answer: list[tuple[str, str]] = self._call("waiting")
        return answer

    def memory(self) -> MemoryUsage:
        """Returns the bytes held on the device and in the host's memory; zero while there is no child."""
        return self._supervisor.memory()

    def block_map(self) -> BlockColumns:
        """Returns an array for each field of a block."""
        answer: BlockColumns = self._call("block_map")
        return answer

    def state_map(self) -> BlockColumns:
        """Returns an array for each field of a slot of recurrent states."""
        answer: BlockColumns = self._call("state_map")
        return answer

    def reset_prefix_cache(self) -> bool:
        """Drops all cached prefixes; false while a request holds blocks."""
        answer: bool = self._call("reset_prefix_cache")
        return answer

    def record_kv_events(self, max_events: int) -> None:
        """Starts the log of KV events, in this process and in its successors."""
        self._supervisor.record_kv_events(max_events)

    def stop_kv_events(self) -> None:
        """Ends the log of KV events."""
        self._supervisor.stop_kv_events()

    def take_kv_events(self) -> list[tuple[Any, ...] | None]:
        """Returns the KV events since the last call; events of a dead process are lost."""
        answer: list[tuple[Any, ...] | None] = self._call("take_kv_events")
        return answer

    def prompt_logits(self, prompt_token_ids: TokenIds) -> NDArray[np.float32]:
        """Returns the logits at every position: float32 of shape `[len(prompt_token_ids), vocab_size]`."""
        answer: NDArray[np.float32] = self._call("prompt_logits", prompt_token_ids)
        return answer

    def check_integrity(self) -> None:
        """Checks the invariants of KV cache and scheduler."""
        self._call("check_integrity")

    def describe(self) -> str:
        """Describes the device, and the kernels that serve the tensors."""
        return self._supervisor.loaded.description

    def close(self) -> None:
        """Closes the engine and ends its process."""
        self._supervisor.close()

    def end(self) -> None:
        """Ends the process of an engine that was not closed: at once, unless it has files to write."""
        self._supervisor.end()

    def _call(self, name: str, *arguments: object) -> Any:
        return self._supervisor.call(name, *arguments).result()


class IsolatedInbox:
    """Hands requests to the child and collects their outputs."""

    def __init__(self, supervisor: Supervisor, remote: RemoteInbox) -> None:
        self._supervisor = supervisor
        self._remote = remote
        # Requests of an inbox that is never closed are aborted.
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
        images: Sequence[Image] = (),
        final_only: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Accepted:
        """Hands a request to the child, and waits until the child has accepted it."""
        key = self._remote.expect(params, final_only=final_only)
        try:
            answer = self._start(key, prompt, params, options, images)
            return _accepted(key, answer.result())
        except BaseException:
            self.forget(key)
            raise

    async def submit_soon(
        self,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        *,
        images: Sequence[Image] = (),
        **options: Unpack[RequestOptions],
    ) -> Accepted:
        """Does the same as `submit` without blocking the event loop, even if the child hangs."""
        key = self._remote.expect(params)
        try:
            answer = self._start(key, prompt, params, options, images)
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

    def _start(
        self,
        key: int,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        options: RequestOptions,
        images: Sequence[Image],
    ) -> "Future[tuple[str, list[int]]]":
        return self._supervisor.call("submit", key, prompt, params, options, images)


def _accepted(key: int, answer: tuple[str, list[int]]) -> Accepted:
    return Accepted(key, *answer)


def _close(supervisor: Supervisor, remote: RemoteInbox) -> None:
    for key in remote.close():
        supervisor.tell("forget", key)
