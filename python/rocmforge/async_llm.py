"""`AsyncLLM`: concurrent requests from asyncio, on any number of event loops and threads."""

import asyncio
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Self, Unpack

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import Accepted, Engine, Image, Inbox, PoolingParams, RequestUpdate, SamplingParams
from rocmforge.display.progress import Report
from rocmforge.engine import LoadedModel
from rocmforge.errors import EngineDeadError
from rocmforge.executors import submit_on_thread, to_thread
from rocmforge.isolation import AnyEngine
from rocmforge.outputs import Request, RequestOutput
from rocmforge.prompts import AnyPrompt, ChatOptions, Conversation, PlainPrompt, Prompt, has_images, plain_prompt
from rocmforge.replies import ReplyReader
from rocmforge.requests.embedding import PoolingName, embeddings_wanted, prepare_all, vector
from rocmforge.requests.options import RequestOptions
from rocmforge.requests.submission import placed
from rocmforge.settings import LoadOptions

# Longer texts (in characters) are tokenized on a thread, because they would block the event loop for milliseconds.
LONG_TEXT = 16_384


def until(left: threading.Event, report: Report | None) -> Report:
    """Returns a report that ends the work with `CancelledError` once its caller has left."""

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
        """Loads a model as the constructor does, on a separate thread. The event loop is not blocked.

        Cancelling the task stops the load during a download or while weights are read. Other parts finish first:
        reading metadata, compiling kernels, the self-test. Then the loaded model is closed.
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
            # A load that has just finished either closes its model itself or has added it to the list.
            for llm in loaded:
                llm.close()
            raise
        return loaded[0]

    async def reset_prefix_cache(self) -> bool:
        """Drops all cached prefixes. While a request holds blocks, it does nothing and returns false."""
        return await asyncio.to_thread(self._engine.reset_prefix_cache)

    async def check_integrity(self) -> None:
        """Checks the invariants of KV cache and scheduler.

        Raises:
            RocmForgeError: An invariant is violated, which is a bug in rocmforge.
        """
        await asyncio.to_thread(self._engine.check_integrity)

    async def waiting_reasons(self) -> dict[str, str]:
        """Returns why each waiting request waits, by request id. The answer comes between two engine steps.

        - `sequence_slots`: `max_num_seqs` sequences run.
        - `kv_blocks`: too few KV blocks are free.
        - `step_tokens`: other requests took the token budget, `max_num_batched_tokens`.
        - `partial_prefills`: the maximum number of prompts is partly computed.
        - `shared_prefix`: another request computes the beginning of this prompt.
        - `kv_offload`: the beginning of this prompt is read from `kv_offload_dir`.
        - `client_share`: other clients have their turn.
        - `priority`: requests with a higher priority come first.
        """
        return dict(await to_thread(self._engine.waiting))

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
        """Yields the outputs of a request as they come. Outputs that were not yet taken are merged.

        Leaving the loop, cancelling the task or closing the generator aborts the request. Its id is free at once. Its
        KV blocks are free within one step, or after about 100 ms if a step on the CPU takes longer.

        Args:
            prompt: A text or token ids. Also `{"prompt": text}` or `{"prompt_token_ids": ids}`, as in vLLM. Such a
                dict may have `"images"`, one for each placeholder.
            sampling_params: The sampling parameters; `output_kind` selects the content of each output.
            request_id: An id for `abort`; must not be in use.
            priority: Lower runs earlier.
            timeout: Seconds from now; then the request ends with finish reason `timeout`. On a GPU it takes effect at
                the end of a step. On the CPU it also interrupts a step, after about 100 ms. Such interruptions are
                limited while other requests take part in the step, to 5 s of discarded work.
            cache_salt: Cached prefixes of this request are shared only with requests that have the same salt. So other
                users cannot find out from response times that a prompt was served before.
            client: The client that sends the request. Clients with waiting requests of the same priority get equal
                numbers of computed tokens, independent of their numbers of requests. All requests without a client
                count as one client.

        Raises:
            InvalidRequestError: The prompt or its parameters cannot be served. The generator raises it and the errors
                below, not this call.
            QueueFullError: Too many requests wait.
            RocmForgeError: The request failed while it ran. Other requests continue.
            EngineDeadError: The engine was closed before, or it lost its device. A request that runs when it is closed
                ends with finish reason `abort`.
        """
        options = RequestOptions(
            request_id=request_id, priority=priority, timeout=timeout, cache_salt=cache_salt, client=client
        )
        if has_images(prompt):

            def read() -> tuple[PlainPrompt, str | None, None]:
                plain = plain_prompt(prompt)
                return plain, plain.text, None

            return self._encoded(read, sampling_params, options)
        plain = plain_prompt(prompt)
        return self._stream(plain, plain.text, sampling_params, options)

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

        When the first output is requested, a thread renders and tokenizes the conversation. So a long conversation does
        not block the event loop, and its errors are raised at the first output.
        """

        def encode() -> tuple[PlainPrompt, str, ReplyReader]:
            self._reply_formats.check_tools(options)
            prompt, images = self._encode_chat(messages, options)
            reader = self._reply_formats.reader(options, prompt.text)
            return PlainPrompt(prompt.token_ids, images), prompt.text, reader

        request_options = RequestOptions(
            request_id=request_id, priority=priority, timeout=timeout, cache_salt=cache_salt, client=client
        )
        return self._encoded(encode, sampling_params, request_options)

    async def _encoded(
        self,
        encode: Callable[[], tuple[PlainPrompt, str | None, ReplyReader | None]],
        params: SamplingParams | None,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt, text, reader = await to_thread(encode)
        outputs = self._stream(prompt, text, params, options, reader)
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
        """Embeds prompts as `LLM.embed` does: float32 of shape `[len(prompts), embedding_size]`.

        A thread tokenizes the prompts, and they are submitted together. Cancelling the task aborts them. The other
        arguments are those of `generate`.

        Raises:
            InvalidRequestError: A prompt cannot be served; the message names it by its index. Nothing has run.
            QueueFullError: There is no room for all of the prompts; none is left waiting.
            TimeoutError: Not all prompts were done after `timeout` seconds.
            RocmForgeError: A request failed while it ran.
            EngineDeadError: The engine was closed, or it lost its device.
        """
        params = PoolingParams(pooling, normalize)
        options = RequestOptions(priority=priority, timeout=timeout, cache_salt=cache_salt, client=client)
        encoded = await to_thread(prepare_all, self._engine, embeddings_wanted(prompts, params, priority, options))
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
        """Ranks documents as `LLM.score` does: float32 of shape `[len(documents)]`. Raises the errors of `embed`."""
        prompts = await to_thread(self.rank_prompts, query, documents)
        scores = await self.embed(
            prompts, pooling="rank", priority=priority, timeout=timeout, cache_salt=cache_salt, client=client
        )
        return scores[:, 0]

    async def abort(self, request_id: str | Iterable[str]) -> bool:
        """Aborts a request, or several, by id. Each generator then yields its last output; the ids are free at once.

        Returns:
            True if at least one of them was active.
        """
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        if isinstance(self._engine, Engine):
            return sum(map(self._engine.abort, names)) > 0
        # The answer may take long: the engine's process may hang.
        return sum(await to_thread(lambda: list(map(self._engine.abort, names)))) > 0

    def close(self) -> None:
        """Closes the engine as `LLM.close` does. Waiting generators end with their last output."""
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
        """Submits a request as `generate` does, and returns its stream once the engine has accepted it.

        For servers: a refusal is raised here, before anything has been sent to a client.

        Raises:
            InvalidRequestError: The prompt or its parameters cannot be served.
            QueueFullError: Too many requests wait.
            EngineDeadError: The engine was closed, or it lost its device.
        """
        plain = await to_thread(plain_prompt, prompt) if has_images(prompt) else plain_prompt(prompt)
        options = RequestOptions(
            request_id=request_id, priority=priority, timeout=timeout, cache_salt=cache_salt, client=client
        )
        return await self._submit(plain, plain.text, sampling_params, options)

    async def _submit(
        self,
        prompt: PlainPrompt,
        text: str | None,
        params: SamplingParams | None,
        options: RequestOptions,
        reader: ReplyReader | None = None,
    ) -> "RequestStream":
        params = params or self.get_default_sampling_params()
        content, images = prompt
        # Structured output is compiled on a thread as well; the engine then finds the cached result.
        if images:
            content = await to_thread(placed, self._engine, content)
        elif params.structured_outputs is not None or (isinstance(content, str) and len(content) > LONG_TEXT):
            content = await to_thread(self._engine.prepare, content, params)
        accepted, updates = await self._hand_over(content, params, options, images)
        return RequestStream(Request(accepted, text, params, reader=reader), updates)

    async def _hand_over(
        self,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        options: RequestOptions,
        images: tuple[Image, ...] = (),
    ) -> "tuple[Accepted, _Updates]":
        loop = asyncio.get_running_loop()
        bridge = self._bridge(loop)
        try:
            if not isinstance(bridge.inbox, Inbox):
                accepted = await bridge.inbox.submit_soon(prompt, params, images=images, **options)
            elif images:
                # The engine resizes them.
                accepted = await submit_on_thread(bridge.inbox, prompt, params, images=images, **options)
            else:
                accepted = bridge.inbox.submit(prompt, params, **options)
        except BaseException:
            self._release(loop, bridge, None)
            raise
        release = functools.partial(self._release, loop, bridge, accepted.key)
        return accepted, _Updates(loop, bridge, accepted.key, release)

    async def _stream(
        self,
        prompt: PlainPrompt,
        text: str | None,
        params: SamplingParams | None,
        options: RequestOptions,
        reader: ReplyReader | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        stream = await self._submit(prompt, text, params, options, reader)
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
        """Drops a request, and the loop with its last request, so that an idle engine keeps no loop alive."""
        if id_ is not None:
            bridge.news.pop(id_, None)
            bridge.inbox.forget(id_)
        if not bridge.news:
            with self._lock:
                if self._bridges.get(loop) is bridge:
                    del self._bridges[loop]


class RequestStream:
    """The outputs of a request that the engine has accepted, as `AsyncLLM.generate` yields them.

    Used as `async with stream: async for output in stream`. Leaving the block aborts a request that still runs.
    """

    def __init__(self, request: Request, updates: "_Updates") -> None:
        self._request = request
        self._updates = updates

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self._request.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's token ids, as the engine accepted them."""
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
    """Takes the engine's outputs for one request."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, bridge: "_Bridge", key: int, release: Callable[[], None]
    ) -> None:
        self._bridge = bridge
        self._key = key
        self._news = bridge.news[key] = asyncio.Event()
        # Outputs of another process may have arrived before this event existed.
        self._news.set()
        self.finished = False
        self._release = release
        # For a stream that is never closed. The garbage collector may run anywhere, so the loop does the work.
        self._abandoned = weakref.finalize(self, _call_soon, loop, release)
        self._abandoned.atexit = False

    async def next(self) -> RequestUpdate:
        """Waits for the next output of a request that has not finished."""
        while True:
            await self._news.wait()
            self._news.clear()
            update = self._bridge.inbox.take(self._key)
            if update is not None:
                self.finished = update.finished
                return update
            if self._bridge.ended:
                raise EngineDeadError("the engine ended without a final output of the request")

    def close(self) -> None:
        """Aborts the request, unless it has ended; a second call does nothing."""
        if self._abandoned.detach() is not None:
            self._release()


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    # A closed loop has released everything already.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


class _Bridge:
    """The requests of one event loop. The engine wakes the loop once for the new outputs of all of them."""

    __slots__ = ("__weakref__", "_loop", "ended", "inbox", "news")

    def __init__(self, engine: AnyEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.news: dict[int, asyncio.Event] = {}
        # True once the engine has delivered everything.
        self.ended = False
        # Weak, because the garbage collector cannot see cycles through the inbox.
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
        """Wakes all waiting streams when the engine has ended, after its last deliveries."""
        self.ended = True
        # In a closed loop nothing waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: list(map(asyncio.Event.set, self.news.values())))
