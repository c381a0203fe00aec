"""The models of a server, by name. A request holds the service of its model until the answer is sent."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Request

from rocmforge._rocmforge import default_settings
from rocmforge.async_llm import AsyncLLM
from rocmforge.errors import InvalidRequestError, ModelFileError, OutOfMemoryError, RocmForgeError
from rocmforge.hub import is_name
from rocmforge.server.answers.metrics import Metrics
from rocmforge.server.config import ServerConfig
from rocmforge.server.errors import RETRY_AFTER, ApiError, short
from rocmforge.server.http.access import check_operator
from rocmforge.server.http.streaming import unless_gone
from rocmforge.server.models.catalog import ModelSpec, check_names
from rocmforge.server.models.kv_events import KvEvents
from rocmforge.server.models.model import Model
from rocmforge.server.models.space import Space
from rocmforge.server.service import Service

if TYPE_CHECKING:
    from rocmforge.server.tracing import Tracer

logger = logging.getLogger("rocmforge.server")

# An absolute path in an error.
_PATH = re.compile(r"(?:^|[\s(])/\w")


class Models:
    """All models of a server. Each is loaded for its first request.

    Args:
        specs: The models.
        config: The settings.

    Raises:
        InvalidRequestError: Two models have the same name, or KV events of these models cannot be published.
    """

    def __init__(self, specs: Sequence[ModelSpec], config: ServerConfig) -> None:
        check_names(specs)
        if len(specs) > 1 and (config.served_model_name or config.chat_template):
            raise InvalidRequestError(
                "served_model_name, chat_template: got them for several models, expected aliases and a chat_template "
                "in the table of each"
            )
        self._config = config
        # No other reference to an engine remains, so that unloading frees its memory.
        self.all = [Model(replace(spec, engine=None), self._plan_sleep) for spec in specs]
        self.metrics = Metrics(self._states)
        self._by_name = {name: model for model in self.all for name in model.spec.names}
        self._space = Space(self.all, config, self._unload)
        # One load at a time, so that the next one sees how much memory is left.
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._is_draining = False
        self._reports: dict[Model, asyncio.Task[None]] = {}
        self._sleeping: dict[Model, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        with ExitStack() as undo:
            self.tracer = _tracer(config)
            if self.tracer is not None:
                undo.callback(self.tracer.close)
            self._kv_events = KvEvents(specs, config)
            undo.callback(self._kv_events.close)
            for model, spec in zip(self.all, specs, strict=True):
                if spec.engine is not None:
                    self._set_loaded(model, spec.engine)
            undo.pop_all()

    @property
    def names(self) -> list[str]:
        """All names that a request may give."""
        return list(self._by_name)

    @property
    def retention(self) -> float:
        """Seconds for which results are kept: the longest retention of all models."""
        default = default_settings()["retention"]
        return max(model.spec.settings.get("retention", default) for model in self.all)

    @property
    def services(self) -> list[Service]:
        """The services of all loaded models."""
        return [model.service for model in self.all if model.service is not None]

    def find(self, name: str | None) -> Model:
        """Returns the model that a request names. Without a name, it returns the only model.

        Raises:
            ApiError: There is no such model, or there is no name and several models.
        """
        there = ", ".join(self.names)
        if name is None:
            if len(self.all) > 1:
                raise ApiError(400, f"model: it is missing, expected one of {there}", param="model")
            return self.all[0]
        if name not in self._by_name:
            raise ApiError(
                404,
                f"model: got {short(name)}, expected one of those that are served: {there}",
                param="model",
                code="model_not_found",
            )
        return self._by_name[name]

    def loaded(self, name: str | None) -> Service:
        """Returns the service of a loaded model.

        Raises:
            ApiError: There is no such model, or it is not loaded.
        """
        model = self.find(name)
        if model.service is None:
            raise ApiError(
                409, f"model: {model.name!r} is {model.state}, expected a loaded one; ask it something first"
            )
        return model.service

    async def load(self, model: Model) -> None:
        """Loads a model, or waits for a running load. The caller holds the model; the load continues if it leaves.

        Raises:
            ApiError: The model cannot be loaded, too many requests wait, or the server is shutting down.
        """
        if self._is_draining:
            raise self._going_down()
        if model.service is not None:
            return
        if model.loading is None:
            model.progress = (0, 0)
            model.loading = asyncio.create_task(self._load(model))
            # The exception is retrieved here, because all clients may have left.
            model.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        loading = model.loading
        with self._waiting():
            await asyncio.wait({loading})
        if loading.cancelled():
            raise self._going_down() if self._is_draining else _unloaded(model)
        if (error := loading.exception()) is not None:
            raise _failed(model, error) from error

    async def until_it_takes_requests(self, model: Model) -> None:
        """Waits while a model is about to be unloaded.

        Raises:
            ApiError: Too many requests wait.
        """
        with self._waiting():
            await model.takes_requests.wait()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        if self._num_waiting >= self._config.max_load_queue:
            raise ApiError(
                429,
                f"model: {self._num_waiting} requests wait for models to be loaded, which is all that may "
                "(max_load_queue); try again later",
                headers={"Retry-After": str(RETRY_AFTER)},
            )
        self._num_waiting += 1
        try:
            yield
        finally:
            self._num_waiting -= 1

    async def unload(self, model: Model) -> None:
        """Unloads a model once the requests that use it have ended; cancels a running load.

        Raises:
            ApiError: The model must stay loaded, or requests use it for longer than `load_timeout`.
        """
        if model.spec.stays_loaded:
            raise ApiError(400, f"model: {model.name!r} stays loaded", param="model")
        if model.loading is not None:
            model.loading.cancel()
            await asyncio.wait({model.loading})
        async with self._turn:
            if model.service is not None:
                try:
                    await self._space.free(model)
                except OutOfMemoryError as error:
                    raise ApiError(503, str(error), headers={"Retry-After": str(RETRY_AFTER)}) from error

    async def ready(self) -> str | None:
        """Returns why a loaded model cannot generate a token now; `None` if all can."""
        for model in self.all:
            if model.service is not None and model.takes_requests.is_set():
                with model.held():
                    if (reason := await model.service.ready()) is not None:
                        return reason
        return "the server is shutting down" if self._is_draining else None

    async def _load(self, model: Model) -> None:
        """Loads a model; runs as a task."""
        started = time.monotonic()
        try:
            # Other models may be loaded while one is downloaded.
            file = await model.fetch()
            async with self._turn:
                await self._load_in_turn(model, file)
            self.metrics.loaded(model.name, time.monotonic() - started)
        except Exception as error:
            model.error = told(model, error)
            known = isinstance(error, RocmForgeError | OSError)
            logger.log(logging.ERROR, "model %s: it cannot be loaded: %s", model.name, error, exc_info=not known)
            self.metrics.load_failed(model.name)
            raise
        finally:
            model.loading = None

    async def _load_in_turn(self, model: Model, file: Path) -> None:
        while True:
            await self._space.make(model)
            started = time.monotonic()
            try:
                engine = await AsyncLLM.load(file, **model.spec.settings, progress=False, on_load=model.report)
            except OutOfMemoryError:
                if not await self._space.free_oldest(model):
                    raise
                continue
            if self._space.measure(model, engine.memory().total):
                break
            await asyncio.to_thread(engine.close)
        try:
            self._set_loaded(model, engine)
        except BaseException:
            await asyncio.to_thread(engine.close)
            raise
        self._start_report(model)
        self._plan_sleep(model)
        logger.info(
            "model %s: loaded in %.3f s, %d bytes; %s",
            model.name,
            time.monotonic() - started,
            model.num_bytes,
            self._space.describe(),
        )

    def _set_loaded(self, model: Model, engine: AsyncLLM) -> None:
        self._kv_events.add(engine, model.name)
        metrics = self.metrics.model(model.name, engine)
        model.service = Service(engine, model.spec.names, model.chat_template, self._config, metrics, self.tracer)
        model.num_bytes = engine.memory().total
        model.error = None
        model.is_asleep = False
        model.keep_alive = None if model.spec.stays_loaded else self._config.sleep_idle_seconds
        model.last_used = time.monotonic()

    async def _unload(self, model: Model) -> None:
        """Closes the engine of an idle model."""
        service = model.service
        if service is None:
            return
        model.service = None
        self.metrics.forget(model.name)
        if model in self._reports:
            self._reports.pop(model).cancel()
        await asyncio.to_thread(service.engine.close)
        logger.info("model %s: unloaded, %d bytes given back; %s", model.name, model.num_bytes, self._space.describe())

    def _plan_sleep(self, model: Model) -> None:
        """Schedules the unloading of a model after its time without requests."""
        if model in self._sleeping:
            self._sleeping.pop(model).cancel()
        left = model.seconds_left()
        if left is not None and model.service is not None and not self._is_draining:
            loop = asyncio.get_running_loop()
            self._sleeping[model] = loop.call_later(max(0.0, left), self._begin_sleep, model)

    def _begin_sleep(self, model: Model) -> None:
        del self._sleeping[model]
        task = asyncio.create_task(self._sleep(model))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sleep(self, model: Model) -> None:
        async with self._turn:
            # A request that uses the model now schedules this again at its end.
            if model.service is None or not model.is_idle.is_set():
                return
            left = model.seconds_left()
            if left is None or left > 0:
                self._plan_sleep(model)
                return
            model.is_asleep = True
            await self._space.free(model)

    def _states(self) -> dict[str, str]:
        return {model.name: model.state for model in self.all}

    def _start_report(self, model: Model) -> None:
        if model.service is not None:
            self._reports[model] = asyncio.create_task(model.service.report())

    def _going_down(self) -> ApiError:
        after = str(max(1, round(self._config.shutdown_timeout)))
        return ApiError(503, "the server is shutting down; try another one", headers={"Retry-After": after})

    def abort(self) -> None:
        """Ends a drain at once."""
        for service in self.services:
            service.abort()

    async def drain(self) -> None:
        """Refuses new requests, waits up to `shutdown_timeout` for running ones, and closes the engines."""
        self._is_draining = True
        for timer in self._sleeping.values():
            timer.cancel()
        loads = {model.loading for model in self.all if model.loading is not None}
        for load in loads:
            load.cancel()
        if loads:
            await asyncio.wait(loads)
        await asyncio.gather(*(service.drain() for service in self.services), *self._tasks)
        await asyncio.to_thread(self._kv_events.close)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Runs the periodic reports while the server runs; drains at the end."""
        for model in self.all:
            self._start_report(model)
            self._plan_sleep(model)
        try:
            yield
        finally:
            await self.drain()
            for report in self._reports.values():
                report.cancel()
            # All answers have been sent.
            if self.tracer is not None:
                await asyncio.to_thread(self.tracer.close)


def _tracer(config: ServerConfig) -> "Tracer | None":
    if config.otlp_traces_endpoint is None:
        return None
    # The packages for tracing are a separate extra.
    from rocmforge.server.tracing import Tracer  # noqa: PLC0415

    return Tracer(config.otlp_traces_endpoint)


def _failed(model: Model, error: BaseException) -> ApiError:
    """Returns the error for requests that wait for a model that cannot be loaded."""
    message = f"model: {model.name!r} cannot be loaded: {told(model, error)}"
    if isinstance(error, OutOfMemoryError | ConnectionError):
        return ApiError(503, message, param="model", headers={"Retry-After": str(RETRY_AFTER)})
    return ApiError(500, message, param="model")


def told(model: Model, error: BaseException) -> str:
    """Returns a failed load's error for clients, without the server's paths and the contents of files."""
    if isinstance(error, OutOfMemoryError | ConnectionError):
        return str(error)
    path = model.spec.path
    # Errors of a hub have no path, those of its files on this machine have one.
    if is_name(path) and not isinstance(error, ModelFileError) and not _PATH.search(str(error)):
        return str(error)
    return f"{Path(path).name}: it is missing, or not what this server can run; its log says why"


def _unloaded(model: Model) -> ApiError:
    headers = {"Retry-After": "1"}
    return ApiError(503, f"model: {model.name!r} was unloaded before it was loaded; ask again", headers=headers)


class RequestModels:
    """The models that one request uses. Each stays loaded until the request is answered."""

    def __init__(self, models: Models, request: Request, stack: ExitStack) -> None:
        self.registry = models
        self._request = request
        self._stack = stack

    async def use(self, name: str | None) -> Service:
        """Returns the service of the model that the request names; loads the model if necessary.

        Raises:
            ApiError: There is no such model, or it cannot be loaded.
            ClientLeft: The client disconnected before the model was loaded.
        """
        model = self.registry.find(name)
        while not model.takes_requests.is_set():
            await unless_gone(self._request, self.registry.until_it_takes_requests(model))
        self._stack.enter_context(model.used())
        while model.service is None:
            await unless_gone(self._request, self.registry.load(model))
        return model.service

    def keep(self, name: str | None, seconds: float | None) -> None:
        """Sets how long a model stays loaded after this and later requests; `None` means for ever.

        If the server has keys, only an operator's value has an effect.

        Raises:
            ApiError: The model cannot be unloaded, or the client has no admin key.
        """
        model, client = self.registry.find(name), self._request.state.client
        if seconds == 0:
            check_operator(client)
        if not client.is_operator:
            return
        if not model.spec.stays_loaded:
            model.keep_alive = seconds
        elif seconds == 0:
            raise ApiError(400, f"keep_alive: got 0, expected another time: {model.name!r} stays loaded")

    async def unload(self, name: str | None) -> None:
        """Unloads a model once other requests that use it have ended.

        Raises:
            ApiError: There is no such model, it cannot be unloaded, or the client has no admin key.
            ClientLeft: The client disconnected before the model was unloaded.
        """
        check_operator(self._request.state.client)
        await unless_gone(self._request, self.registry.unload(self.registry.find(name)))
