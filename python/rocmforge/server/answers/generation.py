"""Requests to the engine on behalf of one HTTP request."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rocmforge._rocmforge import SamplingParams
from rocmforge.async_llm import RequestStream
from rocmforge.errors import RocmForgeError
from rocmforge.outputs import RequestOutput
from rocmforge.server.answers.metrics import ModelMetrics, Timer
from rocmforge.server.answers.stops import AnswerStops, WholeReply
from rocmforge.server.errors import ApiError


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request."""

    name: str
    """`anonymous`, or the beginning of the key's digest."""
    salt: str | None
    """Part of the hash of this client's blocks in the prefix cache; `None` if the server has no keys."""
    is_operator: bool = False
    """True if the client has an admin key, or there are no keys."""


ANONYMOUS = Client("anonymous", None, is_operator=True)


@dataclass(frozen=True, slots=True)
class Call:
    """The options of a request to the engine besides its prompt and its sampling parameters."""

    client: Client
    id: str
    """The request's name, in the log and for `/v1/engine/requests`."""
    priority: int = 0
    timeout: float | None = None
    cache_salt: str | None = None
    stops: AnswerStops | None = None
    """Stop strings that the parser of the reply looks for."""
    constraint_param: str = "structured_outputs"
    """The parameter of the API that requires structured output, for errors."""

    def salt(self) -> str | None:
        """Returns the client's salt combined with the salt of the request."""
        parts = [salt for salt in (self.client.salt, self.cache_salt) if salt is not None]
        return ":".join(parts) if parts else None


class Generation:
    """A request that the engine has accepted: an asynchronous iterator of its outputs, with measurements.

    Args:
        stream: The engine's stream.
        call: The options of the request.
        params: Its sampling parameters.
        timer: Measures the request.
        failed: Turns an error of the engine into one for the client; also gets `call.constraint_param`.
        ended: Called once, at the end.
    """

    operation = "text_completion"

    def __init__(
        self,
        stream: RequestStream,
        call: Call,
        params: SamplingParams,
        timer: Timer,
        failed: Callable[[RocmForgeError, str], ApiError],
        ended: Callable[[Call, Timer], None],
    ) -> None:
        self._stream = stream
        self.call = call
        self._params = params
        self._timer = timer
        self._failed = failed
        self._ended = ended
        self._open = True

    @property
    def lengths(self) -> list[int]:
        """The number of prompt tokens, in a list as for `Embedding`."""
        return [self._timer.num_prompt_tokens]

    def progress(self) -> dict[str, Any]:
        """Returns the progress of the request, for `/v1/engine/requests`."""
        timer = self._timer
        # The tokens of a request that is not streamed arrive only at its end.
        streamed = self._params.output_kind != "final_only"
        return {
            "id": self.call.id,
            "client": self.call.client.name,
            "priority": self.call.priority,
            "streamed": streamed,
            "n": self._params.n,
            "prompt_tokens": timer.num_prompt_tokens,
            "cached_tokens": timer.num_cached if timer.num_generated else None,
            "miss": timer.miss,
            "generated_tokens": timer.num_generated if streamed else None,
            "max_tokens": self._params.max_tokens,
            "seconds": round(time.monotonic() - timer.started, 3),
            "seconds_to_first_token": round(timer.first - timer.started, 3) if timer.num_generated else None,
        }

    def traced(self) -> dict[str, Any]:
        """Returns the attributes of the request's trace, once it has ended."""
        timer, params = self._timer, self._params
        settings = {
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "frequency_penalty": params.frequency_penalty,
            "presence_penalty": params.presence_penalty,
            "seed": params.seed,
            "choice.count": params.n,
        }
        latencies = {
            "time_in_queue": timer.queued,
            "time_to_first_token": timer.first - timer.started if timer.num_generated else None,
            "e2e": time.monotonic() - timer.started,
        }
        return {
            **{f"gen_ai.request.{name}": value for name, value in settings.items() if value is not None},
            **{f"gen_ai.latency.{name}": value for name, value in latencies.items() if value is not None},
            "gen_ai.operation.name": self.operation,
            "gen_ai.usage.input_tokens": timer.num_prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": timer.num_cached,
            "gen_ai.usage.output_tokens": timer.num_generated,
            "gen_ai.response.finish_reasons": [timer.reason],
        }

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.call.stops is not None and self.call.stops.over:
            self._timer.reason = "stop"
            raise StopAsyncIteration
        try:
            output = await anext(self._stream)
        except RocmForgeError as error:
            self._timer.reason = "error"
            raise self._failed(error, self.call.constraint_param) from error
        self._timer.record(output)
        return output

    async def final(self) -> RequestOutput:
        """Returns the last output, complete if `output_kind` is `final_only` or if the parser finds stop strings."""
        last = await self.__anext__()
        if self.call.stops is None:
            async for output in self:
                last = output
            return last
        whole = WholeReply(self.call.stops, last)
        async for output in self:
            whole.add(output)
            if whole.over(self._params.n):
                break
        if not all(one.finished() for one in whole.output.outputs):
            self._timer.reason = "stop"
        return whole.output

    async def aclose(self) -> None:
        """Aborts the request, unless it has ended, and records its metrics; a second call does nothing."""
        if self._open:
            self._open = False
            await self._stream.aclose()
            self._ended(self.call, self._timer)


class Embedding:
    """The measurement of one HTTP request for vectors.

    Args:
        call: The options of the request.
        lengths: The number of tokens of each prompt.
        metrics: The metrics of the model.
    """

    operation = "embeddings"

    def __init__(self, call: Call, lengths: Sequence[int], metrics: ModelMetrics) -> None:
        self.call = call
        self.lengths = lengths
        self.reason = "abort"
        self._metrics = metrics
        self.started = time.monotonic()
        for length in lengths:
            metrics.arrived(length)

    def progress(self) -> dict[str, Any]:
        """Returns the progress of the request, for `/v1/engine/requests`."""
        return {
            "id": self.call.id,
            "client": self.call.client.name,
            "priority": self.call.priority,
            "streamed": False,
            "n": len(self.lengths),
            "prompt_tokens": sum(self.lengths),
            "cached_tokens": None,
            "miss": None,
            "generated_tokens": None,
            "max_tokens": 0,
            "seconds": round(time.monotonic() - self.started, 3),
            "seconds_to_first_token": None,
        }

    def traced(self) -> dict[str, Any]:
        """Returns the attributes of the request's trace, once it has ended."""
        return {
            "gen_ai.operation.name": self.operation,
            "gen_ai.usage.input_tokens": sum(self.lengths),
            "gen_ai.response.finish_reasons": [self.reason],
        }

    def finish(self) -> str:
        """Ends the measurement; returns a line for the log."""
        seconds = time.monotonic() - self.started
        for _ in self.lengths:
            self._metrics.whole.observe(seconds)
            self._metrics.ended(self.reason)
        return f"{self.reason}, {len(self.lengths)} vectors of {sum(self.lengths)} tokens, {seconds:.3f} s"


class Generations:
    """The engine's requests for all prompts of one HTTP request. The owner must close them."""

    def __init__(self, each: list[Generation]) -> None:
        self.each = each

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Aborts all requests that have not ended."""
        for generation in self.each:
            await generation.aclose()

    async def final(self) -> list[RequestOutput]:
        """Returns the last output of each prompt."""
        return [await generation.final() for generation in self.each]

    async def merged(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Yields the outputs of all prompts as they come, each with the index of its prompt."""
        if len(self.each) == 1:
            async for output in self.each[0]:
                yield 0, output
            return
        waiting = {asyncio.ensure_future(_next(one)): index for index, one in enumerate(self.each)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index = waiting.pop(task)
                    new = task.result()
                    if new is not None:
                        waiting[asyncio.ensure_future(_next(self.each[index]))] = index
                        yield index, new
        finally:
            for task in waiting:
                task.cancel()


async def _next(generation: Generation) -> RequestOutput | None:
    async for output in generation:
        return output
    return None
