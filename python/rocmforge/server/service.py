"""One engine of a server: its requests, its readiness and its shutdown."""

import asyncio
import contextlib
import logging
import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rocmforge._rocmforge import SamplingParams, inspect_gguf
from rocmforge.async_llm import AsyncLLM
from rocmforge.errors import EngineDeadError, RocmForgeError
from rocmforge.prompts import AnyPrompt
from rocmforge.requests.embedding import PoolingName
from rocmforge.server.answers.generation import Call, Client, Embedding, Generation, Generations
from rocmforge.server.answers.metrics import ModelMetrics, Timer
from rocmforge.server.answers.pace import Pace
from rocmforge.server.answers.replay import KeptTurns
from rocmforge.server.answers.replies import ServedFormat
from rocmforge.server.config import ServerConfig
from rocmforge.server.errors import RETRY_AFTER, ApiError, from_engine
from rocmforge.server.images.kept import KeptImages
from rocmforge.server.lengths import check_length, check_token_ids

if TYPE_CHECKING:
    from rocmforge.server.tracing import Tracer

logger = logging.getLogger("rocmforge.server")

# Seconds between two lines of the log that say how fast the server is, while it is busy.
REPORT_SECONDS = 10.0
# Seconds within which an engine that works has made a step.
STEP_SECONDS = 60.0
# Seconds for which an answer of the engine proves that it can give one.
PROOF_SECONDS = 10.0
MAX_RETRY_AFTER = 60
# Number of ended requests whose records the engine keeps.
MAX_RECORDS = 10_000


class Service:
    """One engine and its requests.

    Args:
        engine: The loaded model.
        names: What clients call it. Answers to requests that name no model have the first.
        chat_template: What replaces the chat template of its file.
        config: The settings of the server.
        metrics: What counts its requests.
        tracer: What traces them, if they are traced.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        names: Sequence[str],
        chat_template: str | None,
        config: ServerConfig,
        metrics: ModelMetrics,
        tracer: "Tracer | None",
    ) -> None:
        self.engine = engine
        self.config = config
        self.names = names
        self.created = int(time.time())
        self.chat_template = chat_template
        self.replies = ServedFormat.served(engine, self.chat_template)
        self.turns = KeptTurns(config.max_turn_bytes, config.max_all_turn_bytes)
        self.images = KeptImages(config.max_kept_image_bytes)
        self.metrics = metrics
        self.draining = False
        self.generates = "generate" in inspect_gguf(engine.model)["tasks"]
        """False for a model that only makes embeddings."""
        self.chats = self.generates and bool(self.replies.template)
        """True if it takes conversations: it generates text and has a chat template."""
        self._tracer = tracer
        self._running: dict[str, Generation | Embedding] = {}
        # End time and client of ended requests by their names, the oldest first.
        self._owners: OrderedDict[str, tuple[float, Client]] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pace = Pace()
        self._proof = 0.0
        self._steps = (0, 0.0)

    def running_for(self, client: Client) -> list[Generation | Embedding]:
        """The requests of one client that have not ended, the oldest first."""
        return [running for running in self._running.values() if running.call.client == client]

    def has_ended_for(self, client: Client, request_id: str) -> bool:
        """True if the engine remembers an ended request of this client under this name."""
        if request_id in self._running:
            # The engine may record the end before the client has read the whole answer.
            return self._running[request_id].call.client == client
        self._forget()
        return request_id in self._owners and self._owners[request_id][1] == client

    def _forget(self) -> None:
        oldest = time.monotonic() - self.engine.config()["retention"]
        while self._owners and (len(self._owners) > MAX_RECORDS or next(iter(self._owners.values()))[0] < oldest):
            self._owners.popitem(last=False)

    async def waiting_reasons(self) -> dict[str, str]:
        """Returns why each waiting request waits, by request id."""
        if self.engine.is_closed or not self.engine.stats().num_waiting:
            return {}
        try:
            return await self.engine.waiting_reasons()
        except EngineDeadError:
            return {}

    async def submit(self, prompts: Sequence[AnyPrompt], params: SamplingParams, call: Call) -> Generations:
        """Hands prompts to the engine: all of them, or none.

        Raises:
            ApiError: The engine refuses one, or the server is about to end.
        """
        check_length(self.engine, "prompt", *(prompt for prompt in prompts if isinstance(prompt, str)))
        check_token_ids(self.engine, "prompt", *(prompt for prompt in prompts if isinstance(prompt, list)))
        generations = Generations([])
        try:
            for index, prompt in enumerate(prompts):
                each = call if len(prompts) == 1 else replace(call, id=f"{call.id}-{index}")
                generations.each.append(await self._submit(prompt, params, each))
        except BaseException:
            await generations.aclose()
            raise
        return generations

    async def embed(
        self,
        prompts: Sequence[Sequence[int]],
        call: Call,
        param: str,
        *,
        pooling: PoolingName = "auto",
        normalize: bool = True,
    ) -> NDArray[np.float32]:
        """Returns a vector for each prompt: for all of them, or for none. Errors name them by the API's parameter.

        Raises:
            ApiError: The engine refuses one or fails, their time is over, or the server is about to end.
        """
        if self.draining:
            raise self._going_down()
        self._check_deadline(call)
        check_token_ids(self.engine, param, *prompts)
        if self.config.log_prompts:
            logger.info("%s: prompts %r", call.id, prompts)
        self._idle.clear()
        embedding = Embedding(call, [len(prompt) for prompt in prompts], self.metrics)
        self._running[call.id] = embedding
        try:
            vectors = await self.engine.embed(
                prompts,
                pooling=pooling,
                normalize=normalize,
                priority=call.priority,
                timeout=call.timeout,
                cache_salt=call.salt(),
                client=call.client.name,
            )
        except TimeoutError as error:
            embedding.reason = "timeout"
            raise ApiError(408, f"timeout: {error}; give it more, or fewer texts at once", param="timeout") from error
        except RocmForgeError as error:
            embedding.reason = "error"
            raise self._failed(error, prompt_param=param) from error
        else:
            embedding.reason = "stop"
            return vectors
        finally:
            self._ended(call, embedding)

    async def _submit(self, prompt: AnyPrompt, params: SamplingParams, call: Call) -> Generation:
        if self.draining:
            raise self._going_down()
        self._check_deadline(call)
        started = time.monotonic()
        try:
            stream = await self.engine.add_request(
                prompt, params, call.id, call.priority, call.timeout, call.salt(), call.client.name
            )
        except RocmForgeError as error:
            raise self._failed(error, call.constraint_param) from error
        if self.config.log_prompts:
            logger.info("%s: prompt %r", call.id, prompt)
        self._idle.clear()
        timer = self.metrics.timer(params, len(stream.prompt_token_ids), started)
        generation = Generation(stream, call, params, timer, self._failed, self._ended)
        self._running[call.id] = generation
        return generation

    def _check_deadline(self, call: Call) -> None:
        """Refuses a request that cannot begin in its time.

        What surely runs before it are the client's own requests that wait. Of others' requests none is counted: their
        priorities and the clients' shares may put them behind it.

        Raises:
            ApiError: They take longer than the request may.
        """
        stats = self.engine.stats()
        self._pace.read(stats.prompt_tokens)
        if call.timeout is None or not stats.num_waiting:
            return
        own = self.running_for(call.client)
        # It is not known which of them wait. A lower bound: as many as are not other clients', and the shortest.
        later = sum(len(each.lengths) for each in own if each.call.priority > call.priority)
        of_others = sum(len(each.lengths) for each in self._running.values() if each.call.client != call.client)
        num_waiting = max(0, stats.num_waiting - of_others - later)
        lengths = sorted(length for each in own if each.call.priority <= call.priority for length in each.lengths)
        wait = self._pace.least_wait(lengths[:num_waiting])
        if wait > call.timeout:
            after = max(1, min(MAX_RETRY_AFTER, math.ceil(wait - call.timeout)))
            raise ApiError(
                429,
                f"timeout: got {call.timeout:g} s, expected at least the {wait:.1f} s that {num_waiting} waiting "
                "requests of this client take; come back later, or give it more time",
                param="timeout",
                code="deadline_exceeded",
                headers={"Retry-After": str(after)},
            )

    def _failed(self, error: RocmForgeError, constraint_param: str = "", prompt_param: str = "") -> ApiError:
        """Translates an error of the engine; an error of a constraint or a prompt names the API's parameter."""
        failure = from_engine(error, self.retry_after())
        for name, param in (("structured_outputs", constraint_param), ("prompt", prompt_param)):
            if param and failure.detail.startswith((f"{name}:", f"{name} ")):
                failure.param = param
                failure.detail = failure.detail.replace(name, param, 1)
        return failure

    def _ended(self, call: Call, timer: Timer | Embedding) -> None:
        running = self._running.pop(call.id)
        self._forget()
        self._owners[call.id] = time.monotonic(), call.client
        self._owners.move_to_end(call.id)
        self._pace.read(self.engine.stats().prompt_tokens)
        if not self._running:
            self._idle.set()
        if self._tracer is not None:
            error = "error" if timer.reason == "error" else None
            attributes = {"gen_ai.request.model": self.names[0], "gen_ai.response.id": call.id}
            seconds = time.monotonic() - timer.started
            self._tracer.record(running.operation, seconds, attributes | running.traced(), error)
        logger.info("%s: %s, client %s", call.id, timer.finish(), call.client.name)

    def _going_down(self) -> ApiError:
        """The error of a server that is shutting down."""
        after = str(max(1, round(self.config.shutdown_timeout)))
        return ApiError(503, "the server is shutting down; try another one", headers={"Retry-After": after})

    def retry_after(self) -> int:
        """Seconds until a request that found the queue full may find room.

        Half of those that wait will have begun by then, at the rate at which requests ended lately.
        """
        rate = self.metrics.finished_per_second()
        waiting = self.engine.stats().num_waiting
        return max(1, min(MAX_RETRY_AFTER, round(waiting / 2 / rate))) if rate > 0 else RETRY_AFTER

    async def ready(self) -> str | None:
        """Returns why no token (or no vector) can be generated now; `None` if it can.

        A busy engine proves it by its steps, an idle one by computing a token or a vector.
        """
        if self.engine.is_closed:
            return "the engine is dead"
        if self.draining:
            return "the server is shutting down"
        if self.engine.is_restarting:
            return "the process of the engine has died; another one is being started"
        now = time.monotonic()
        stats = self.engine.stats()
        if stats.num_running or stats.num_waiting:
            if stats.engine_steps != self._steps[0]:
                self._steps = (stats.engine_steps, now)
            return None if now - self._steps[1] < STEP_SECONDS else f"no step in {STEP_SECONDS:.0f} s"
        self._steps = (stats.engine_steps, now)
        if now - self._proof < PROOF_SECONDS:
            return None
        return await self._prove()

    async def _prove(self) -> str | None:
        params = SamplingParams(max_tokens=1, temperature=0.0, output_kind="final_only")
        salt = uuid.uuid4().hex
        try:
            if not self.generates:
                await self.engine.embed([0], timeout=STEP_SECONDS, cache_salt=salt)
                self._proof = time.monotonic()
                return None
            stream = await self.engine.add_request([0], params, timeout=STEP_SECONDS, cache_salt=salt)
            async with stream:
                async for output in stream:
                    if output.outputs[0].finish_reason not in ("length", "stop"):
                        return f"a test token ended with {output.outputs[0].finish_reason}"
        except (RocmForgeError, TimeoutError) as error:
            return str(error)
        self._proof = time.monotonic()
        return None

    async def report(self) -> None:
        """Writes the throughput into the log while there is any, until it is cancelled."""
        before = self.engine.stats()
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            now = self.engine.stats()
            prompt = (now.prompt_tokens - before.prompt_tokens) / REPORT_SECONDS
            generated = (now.generated_tokens - before.generated_tokens) / REPORT_SECONDS
            if prompt or generated:
                logger.info(
                    "%.1f prompt tokens/s, %.1f generated tokens/s, %d running, %d waiting, KV cache %.1f %% in use",
                    prompt,
                    generated,
                    now.num_running,
                    now.num_waiting,
                    100 * now.blocks_owned / max(1, now.blocks_total),
                )
            before = now

    def abort(self) -> None:
        """Ends a drain at once."""
        self._idle.set()

    async def drain(self) -> None:
        """Refuses new requests, waits up to `shutdown_timeout` for running ones, and closes the engine."""
        self.draining = True
        if self._running:
            logger.info(
                "shutting down: %d requests may finish within %g s", len(self._running), self.config.shutdown_timeout
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.shutdown_timeout):
                await self._idle.wait()
        if self._running:
            logger.warning("shutting down: %d requests are aborted", len(self._running))
        await asyncio.to_thread(self.engine.close)
