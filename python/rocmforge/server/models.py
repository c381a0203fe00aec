"""The models of a server, by their names: who asks for one gets its service, and keeps it until the answer is sent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rocmforge.async_llm import AsyncLLM
from rocmforge.server.config import ServerConfig
from rocmforge.server.errors import ApiError
from rocmforge.server.metrics import Metrics
from rocmforge.server.service import Service


class Models:
    """All models of a server.

    Args:
        engine: The loaded model.
        config: The settings.
    """

    def __init__(self, engine: AsyncLLM, config: ServerConfig) -> None:
        self.metrics = Metrics()
        names = config.served_model_name or (engine.model.stem,)
        service = Service(engine, names, config, self.metrics.model(names[0], engine))
        self._services = dict.fromkeys(names, service)

    @property
    def names(self) -> list[str]:
        """Every name that a request may give."""
        return list(self._services)

    @property
    def services(self) -> list[Service]:
        """The services of all models that are loaded."""
        return list(dict.fromkeys(self._services.values()))

    def find(self, name: str | None) -> Service:
        """The service of the model that a request asks for; a request without a name gets the only model.

        Raises:
            ApiError: There is no such model.
        """
        if name is None:
            return self.services[0]
        if name not in self._services:
            there = ", ".join(self.names)
            raise ApiError(
                404,
                f"model: got {name!r}, expected one of those that are served: {there}",
                param="model",
                code="model_not_found",
            )
        return self._services[name]

    def abort(self) -> None:
        """Ends a drain at once."""
        for service in self.services:
            service.abort()

    async def drain(self) -> None:
        """Refuses what is new, waits `shutdown_timeout` for what runs, and closes the engines."""
        await asyncio.gather(*(service.drain() for service in self.services))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Runs the reports beside the requests; its end drains."""
        reports = [asyncio.create_task(service.report()) for service in self.services]
        try:
            yield
        finally:
            await self.drain()
            for report in reports:
                report.cancel()


class RequestModels:
    """The models as one request uses them: each that it asks for stays loaded until the request is answered."""

    def __init__(self, models: Models) -> None:
        self.models = models

    async def use(self, name: str | None) -> Service:
        """The service of the model that the request names.

        Raises:
            ApiError: There is no such model.
        """
        return self.models.find(name)
