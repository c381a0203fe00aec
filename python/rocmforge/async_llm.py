"""`AsyncLLM`: many requests at once from asyncio, on any number of event loops and threads."""

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import Accepted, ChatPrompt, Engine, Inbox, PoolingParams, RequestUpdate, SamplingParams
from rocmforge.embedding import PoolingName, embeddings_wanted, prepare_all, vector
from rocmforge.engine import LoadedModel
from rocmforge.errors import EngineDeadError
from rocmforge.isolation import AnyEngine
from rocmforge.outputs import Request, RequestOutput
from rocmforge.progress import Report
from rocmforge.prompts import AnyPrompt, ChatOptions, Conversation, Prompt, with_text
from rocmforge.settings import LoadOptions

# Longer texts (characters) are tokenised on a thread, so that the event loop is not held up for milliseconds.
LONG_TEXT = 16_384


def until(left: threading.Event, report: Report | None) -> Report:
    """Gives a report that ends the work with `CancelledError` once nobody waits for it any more."""

    def checked(done: int, total: int) -> None:
        if left.is_set():
            raise asyncio.CancelledError
        if report is not None:
            report(done, total)

    return checked


class AsyncLLM(LoadedModel):  # noqa: D101 - below
    __doc__ = LoadedModel.__doc__

    @classmethod
    async def load(cls, model: str | os.PathLike[str], **options: Unpack[LoadOptions]) -> Self:
        """Loads a model as the constructor does, on a thread of its own: the event loop goes on meanwhile.

        Cancelling the task stops the load while a model is downloaded or weights are read; what comes before and after
        that (the file's metadata, compiling kernels, the self-test) ends first, and then what was loaded is closed.
        """
        left = threading.Event()
        loaded: list[Self] = []
        options["on_load"] = until(left, options.get("on_load"))

        def work() -> None:
            loaded.append(cls(model, **options))
            if left.is_set():
                loaded[0].close()

        try:
            await asyncio.to_thread(work)
        except asyncio.CancelledError:
            left.set()
            # A load that was done by then: either it has seen that nobody waits, or it is in the list.
            for llm in loaded:
                llm.close()
            raise
        return loaded[0]

    async def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; `False`, and nothing done, while a request holds blocks."""
        return await asyncio.to_thread(self._engine.reset_prefix_cache)

    async def check_integrity(self) -> None:
        """Checks the invariants of KV cache and scheduler.

        Raises:
            RocmForgeError: One is broken, which is a bug in rocmforge.
        """
        await asyncio.to_thread(self._engine.check_integrity)

    async def waiting_reasons(self) -> dict[str, str]:
        """Says what each waiting request waits for, by the requests' names; answered between two steps.

        It is one of `sequence_slots` (`max_num_seqs` run), `kv_blocks` (too few are free), `step_tokens` (others took
        `max_num_batched_tokens`), `partial_prefills` (as many prompts as may be are half-way), `shared_prefix` (another
        request computes the beginning of its prompt), `client_share` (it is the turn of other clients) and `priority`.
        """
        return dict(await asyncio.to_thread(self._engine.waiting))

    def _prepare(self) -> None:
        self._bridges: dict[asyncio.AbstractEventLoop, _Bridge] = {}
        self._lock = threading.Lock()

    def generate(
        self,
        prompt: AnyPrompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        client: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the outputs of a request as they come; what has come since last time is merged.

        Leaving the loop, cancelling the task or closing the generator aborts the request: its name is free at once,
        its blocks within one step, or about 100 ms where a step on the CPU takes longer.

        Args:
            prompt: A text or token ids; `{"prompt": text}` and `{"prompt_token_ids": ids}` are the same.
            sampling_params: Its `output_kind` says what each output holds.
            request_id: A name for `abort`; must not be in use.
            priority: Lower runs earlier.
            timeout: Seconds from now; then the request ends with finish reason `timeout`. On the CPU it acts within
                about 100 ms, also in a step that takes longer, unless other requests have a part in that step and
                5 s of computing more than was completed since were thrown away for such reasons; else, and on a GPU,
                when the step ends.
            cache_salt: What the prefix cache keeps of this request is shared only with requests of the same salt, so
                that nobody else can tell from times whether a prompt was served before.
            client: Whom the request is from. Clients that have requests of one priority waiting get equally many tokens
                computed, however many requests each has sent; requests without a client are those of one more.

        Raises:
            InvalidRequestError: The prompt or its parameters cannot be served. Like the errors below, it comes out of
                the generator, not of this call.
            QueueFullError: Too many requests wait.
            RocmForgeError: The request failed while it ran; others go on.
            EngineDeadError: The engine was closed before, or it lost its device. A request that runs when it is closed
                ends with finish reason `abort`.
        """
        plain, text = with_text(prompt)
        return self._stream(plain, text, sampling_params, request_id, priority, timeout, cache_salt, client)

    def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        client: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answers a conversation as `LLM.chat` does, with the same options, and yields the outputs as `generate` does.

        The conversation is rendered and tokenised on a thread, when the first output is asked for: a long one does not
        hold the event loop, and what is wrong with it is raised there.
        """
        encode = functools.partial(self.tokenizer.encode_chat, messages, **options)
        return self._chat(encode, sampling_params, request_id, priority, timeout, cache_salt, client)

    async def _chat(
        self,
        encode: Callable[[], ChatPrompt],
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        deadline: float | None,
        cache_salt: str | None,
        client: str | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt = await asyncio.to_thread(encode)
        outputs = self._stream(
            prompt.token_ids, prompt.text, params, request_id, priority, deadline, cache_salt, client
        )
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    async def embed(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        *,
        pooling: PoolingName = "auto",
        normalize: bool = True,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109 - the requests', not this call's
        cache_salt: str | None = None,
        client: str | None = None,
    ) -> NDArray[np.float32]:
        """Embeds prompts as `LLM.embed` does. Cancelling the task aborts what runs.

        The prompts are tokenised on a thread and handed over together; the other arguments are those of `generate`.

        Raises:
            InvalidRequestError: A prompt cannot be served; the message names it by its index. Nothing has run.
            QueueFullError: There is no room for all of the prompts; none is left waiting.
            TimeoutError: `timeout` was over before all of them were done.
            RocmForgeError: A request failed while it ran.
            EngineDeadError: The engine was closed, or it lost its device.
        """
        params = PoolingParams(pooling, normalize)
        wanted = embeddings_wanted(prompts, params, priority=priority, cache_salt=cache_salt, client=client)
        encoded = await asyncio.to_thread(prepare_all, self._engine, wanted)
        options = {"priority": priority, "timeout": timeout, "cache_salt": cache_salt, "client": client}
        with contextlib.ExitStack() as stack:
            all_updates = []
            for ids in encoded:
                _, updates = await self._hand_over(ids, params, options)
                stack.callback(updates.close)
                all_updates.append(updates)
            return np.stack([vector(await updates.next()) for updates in all_updates])

    async def score(
        self,
        query: str,
        documents: Sequence[str],
        *,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109 - the requests', not this call's
        cache_salt: str | None = None,
        client: str | None = None,
    ) -> NDArray[np.float32]:
        """Ranks documents as `LLM.score` does, and raises what `embed` does."""
        prompts = await asyncio.to_thread(self.rank_prompts, query, documents)
        scores = await self.embed(
            prompts, pooling="rank", priority=priority, timeout=timeout, cache_salt=cache_salt, client=client
        )
        return scores[:, 0]

    async def abort(self, request_id: str | Iterable[str]) -> bool:
        """Ends a request, or several, by name. Each generator then yields its last output; the names are free at once.

        Returns:
            Whether one of them was active.
        """
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        if isinstance(self._engine, Engine):
            return sum(map(self._engine.abort, names)) > 0
        # The answer may take long: the engine's process may hang.
        return sum(await asyncio.to_thread(lambda: list(map(self._engine.abort, names)))) > 0

    def close(self) -> None:
        """Closes the engine as `LLM.close` does; generators that still wait end with their last output."""
        super().close()
        with self._lock:
            bridges = list(self._bridges.values())
        for bridge in bridges:
            bridge.wake_all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    async def add_request(
        self,
        prompt: AnyPrompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109 - the request's, not this call's
        cache_salt: str | None = None,
        client: str | None = None,
    ) -> "RequestStream":
        """Hands a request to the engine as `generate` does, and returns its stream once the engine has taken it.

        For servers: a refusal is raised here, before anything has been sent to a client.

        Raises:
            InvalidRequestError: The prompt or its parameters cannot be served.
            QueueFullError: Too many requests wait.
            EngineDeadError: The engine was closed, or it lost its device.
        """
        plain, text = with_text(prompt)
        return await self._submit(plain, text, sampling_params, request_id, priority, timeout, cache_salt, client)

    async def _submit(
        self,
        prompt: Prompt,
        text: str | None,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        deadline: float | None,
        cache_salt: str | None,
        client: str | None,
    ) -> "RequestStream":
        params = params or self.get_default_sampling_params()
        # A form is compiled on a thread as well, and kept: the engine finds it there.
        if params.structured_outputs is not None or (isinstance(prompt, str) and len(prompt) > LONG_TEXT):
            prompt = await asyncio.to_thread(self._engine.prepare, prompt, params)
        options: dict[str, Any] = {
            "request_id": request_id,
            "priority": priority,
            "timeout": deadline,
            "cache_salt": cache_salt,
            "client": client,
        }
        accepted, updates = await self._hand_over(prompt, params, options)
        return RequestStream(Request(accepted, text, params), updates)

    async def _hand_over(
        self, prompt: Prompt, params: SamplingParams | PoolingParams, options: dict[str, Any]
    ) -> "tuple[Accepted, _Updates]":
        loop = asyncio.get_running_loop()
        bridge = self._bridge(loop)
        try:
            if isinstance(bridge.inbox, Inbox):
                accepted = bridge.inbox.submit(prompt, params, **options)
            else:
                accepted = await bridge.inbox.submit_soon(prompt, params, **options)
        except BaseException:
            self._release(loop, bridge, None)
            raise
        release = functools.partial(self._release, loop, bridge, accepted.key)
        return accepted, _Updates(loop, bridge, accepted.key, release)

    async def _stream(
        self,
        prompt: Prompt,
        text: str | None,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        deadline: float | None,
        cache_salt: str | None,
        client: str | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        stream = await self._submit(prompt, text, params, request_id, priority, deadline, cache_salt, client)
        async with stream:
            async for output in stream:
                yield output

    def _bridge(self, loop: asyncio.AbstractEventLoop) -> "_Bridge":
        with self._lock:
            for stale in [other for other in self._bridges if other.is_closed()]:
                self._bridges.pop(stale).inbox.close()
            bridge = self._bridges.get(loop)
            if bridge is None:
                bridge = self._bridges[loop] = _Bridge(self._engine, loop)
            return bridge

    def _release(self, loop: asyncio.AbstractEventLoop, bridge: "_Bridge", id_: int | None) -> None:
        """Forgets a request, and with a loop's last request the loop: an idle engine keeps no loop alive."""
        if id_ is not None:
            bridge.news.pop(id_, None)
            bridge.inbox.forget(id_)
        if not bridge.news:
            with self._lock:
                if self._bridges.get(loop) is bridge:
                    del self._bridges[loop]


class RequestStream:
    """The outputs of a request that the engine has taken, as `AsyncLLM.generate` yields them.

    Used as `async with stream: async for output in stream`. Its end aborts a request that still runs.
    """

    def __init__(self, request: Request, updates: "_Updates") -> None:
        self._request = request
        self._updates = updates

    @property
    def request_id(self) -> str:
        """The request's name."""
        return self._request.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt, as the engine took it."""
        return self._request.prompt_token_ids

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._updates.finished:
            raise StopAsyncIteration
        return self._request.output(await self._updates.next())

    async def aclose(self) -> None:
        """Aborts the request, unless it has ended; a second call does nothing."""
        self._updates.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Updates:
    """Takes what the engine delivers for one request."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, bridge: "_Bridge", key: int, release: Callable[[], None]
    ) -> None:
        self._bridge = bridge
        self._key = key
        self._news = bridge.news[key] = asyncio.Event()
        # Outputs of another process may be here already, and nobody was told of them.
        self._news.set()
        self.finished = False
        self._release = release
        # For one that nobody closes. The collector may run inside of any code, so the loop does the work.
        self._abandoned = weakref.finalize(self, _call_soon, loop, release)
        self._abandoned.atexit = False

    async def next(self) -> RequestUpdate:
        """Waits for news of a request that has not finished."""
        while True:
            await self._news.wait()
            self._news.clear()
            update = self._bridge.inbox.take(self._key)
            if update is not None:
                self.finished = update.finished
                return update
            if self._bridge.ended:
                raise EngineDeadError("the engine ended without a word about the request")

    def close(self) -> None:
        """Aborts the request, unless it has ended; a second call does nothing."""
        if self._abandoned.detach() is not None:
            self._release()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    # A closed loop has nothing left to be released from.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


class _Bridge:
    """The requests of one event loop. The engine wakes the loop once for whatever has come for all of them."""

    __slots__ = ("__weakref__", "_loop", "ended", "inbox", "news")

    def __init__(self, engine: AnyEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.news: dict[int, asyncio.Event] = {}
        # The engine has delivered everything.
        self.ended = False
        # Weak, because the inbox cannot take part in the collection of cycles.
        this = weakref.ref(self)

        def wake() -> None:
            bridge = this()
            if bridge is not None:
                bridge.wake()

        self._loop = loop
        self.inbox = engine.inbox(loop, wake)

    def wake(self) -> None:
        for id_ in self.inbox.ready():
            news = self.news.get(id_)
            if news is not None:
                news.set()

    def wake_all(self) -> None:
        """Wakes all that wait when the engine has ended, after its last deliveries."""
        self.ended = True
        # A closed loop has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: list(map(asyncio.Event.set, self.news.values())))
