"""`AsyncLLM`: many requests at once from asyncio, on any number of event loops and threads."""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator
from typing import Any, Self

from rocmforge._rocmforge import Engine, SamplingParams
from rocmforge.engine import LoadedModel
from rocmforge.errors import EngineDeadError
from rocmforge.outputs import Request, RequestOutput
from rocmforge.prompts import Conversation, Prompt

# Longer texts (characters) are tokenised on a thread, so that the event loop is not held up for milliseconds.
LONG_TEXT = 16_384


class AsyncLLM(LoadedModel):  # noqa: D101 - below
    __doc__ = LoadedModel.__doc__

    def _prepare(self) -> None:
        self._bridges: dict[asyncio.AbstractEventLoop, _Bridge] = {}
        self._lock = threading.Lock()

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the outputs of a request as they come; what has come since last time is merged.

        Leaving the loop, cancelling the task or closing the generator aborts the request, and its blocks are free
        within one step.

        Args:
            prompt: A text or token ids.
            sampling_params: Its `output_kind` says what each output holds.
            request_id: A name for `abort`; must not be in use.
            priority: Lower runs earlier.
            timeout: Seconds from now; then the request ends with finish reason `timeout`.
            cache_salt: What the prefix cache keeps of this request is shared only with requests of the same salt, so
                that nobody else can tell from times whether a prompt was served before.
        """
        text = prompt if isinstance(prompt, str) else None
        return self._stream(prompt, text, sampling_params, request_id, priority, timeout, cache_salt)

    def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str | None = None,
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        **template_vars: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answers a conversation through the model's chat template; otherwise as `generate`."""
        text, ids = self.tokenizer.encode_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            chat_template=chat_template,
            **template_vars,
        )
        return self._stream(ids, text, sampling_params, request_id, priority, timeout, cache_salt)

    async def abort(self, request_id: str) -> bool:
        """Ends a request, whose generator then yields its last output; `False` when it is not active."""
        return self._engine.abort(request_id)

    def close(self) -> None:
        """As `LLM.close`; generators that still wait end."""
        super().close()
        with self._lock:
            bridges = list(self._bridges.values())
        for bridge in bridges:
            bridge.wake_all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    async def _stream(
        self,
        prompt: Prompt,
        text: str | None,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        deadline: float | None,
        cache_salt: str | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        if isinstance(prompt, str) and len(prompt) > LONG_TEXT:
            prompt = await asyncio.to_thread(self.tokenizer.encode, prompt)
        loop = asyncio.get_running_loop()
        bridge = self._bridge(loop)
        try:
            id_, request_id, prompt_token_ids = bridge.inbox.submit(
                prompt,
                params or self.get_default_sampling_params(),
                request_id=request_id,
                priority=priority,
                timeout=deadline,
                cache_salt=cache_salt,
            )
        except BaseException:
            self._release(loop, bridge, None)
            raise
        request = Request(id_, request_id, text, prompt_token_ids)
        news = bridge.news[id_] = asyncio.Event()
        try:
            finished = False
            while not finished:
                await news.wait()
                news.clear()
                update = bridge.inbox.take(id_)
                if update is not None:
                    finished = update[1]
                    yield request.output(update)
                elif self._engine.is_closed:
                    raise EngineDeadError("the engine was closed while the request was running")
        finally:
            self._release(loop, bridge, id_)

    def _bridge(self, loop: asyncio.AbstractEventLoop) -> "_Bridge":
        with self._lock:
            for stale in [other for other in self._bridges if other.is_closed()]:
                del self._bridges[stale]
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


class _Bridge:
    """The requests of one event loop. The engine wakes the loop once for whatever has come for all of them."""

    __slots__ = ("__weakref__", "_loop", "inbox", "news")

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.news: dict[int, asyncio.Event] = {}
        # Weak, because the inbox cannot take part in the collection of cycles.
        this = weakref.ref(self)

        def wake() -> None:
            bridge = this()
            if bridge is not None:
                bridge.wake()

        self._loop = loop
        self.inbox = engine.inbox(loop.call_soon_threadsafe, wake)

    def wake(self) -> None:
        for id_ in self.inbox.ready():
            news = self.news.get(id_)
            if news is not None:
                news.set()

    def wake_all(self) -> None:
        # A closed loop has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: list(map(asyncio.Event.set, self.news.values())))
