"""Memory for models on the devices: which loaded models are unloaded for another one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from rocmforge._rocmforge import inspect_gguf
from rocmforge.errors import OutOfMemoryError
from rocmforge.server.config import ServerConfig
from rocmforge.server.models.model import Model


class Space:
    """The number and the bytes of the models that are loaded.

    Args:
        models: All models.
        config: The limits.
        unload: Gives back what an idle model holds.
    """

    def __init__(
        self, models: Sequence[Model], config: ServerConfig, unload: Callable[[Model], Awaitable[None]]
    ) -> None:
        self._models = models
        self._config = config
        self._unload = unload

    def describe(self) -> str:
        """Describes the loaded models, for the log."""
        loaded = [model for model in self._models if model.service is not None]
        return f"models loaded: {len(loaded)}, {_num_bytes(loaded)} bytes"

    def measure(self, model: Model, num_bytes: int) -> bool:
        """Records the bytes of a newly loaded model; true if there is room for it.

        Raises:
            OutOfMemoryError: It takes more than all models together may.
        """
        model.num_bytes = num_bytes
        return self._fits(model)

    async def make(self, model: Model) -> None:
        """Unloads models, the least recently used first, until there is room for one more.

        Raises:
            OutOfMemoryError: It takes more than all models together may, or the others stay in use.
            ModelFileError: There would be room, but its file cannot be read.
        """
        cap, needed = self._config.max_model_memory, _needed(model)
        if cap is not None and needed > cap:
            raise OutOfMemoryError(
                f"it takes {needed} bytes of {model.device}, more than the {cap} that models may take "
                "(max_model_memory); raise that, or give the model a smaller max_model_len or kv_cache_memory"
            )
        if model.file is not None and not self._fits(model):
            # A file that cannot be read is not worth another model's place.
            await asyncio.to_thread(inspect_gguf, model.file)
        while not self._fits(model):
            full = self._config.max_models is not None and len(self._others(model)) >= self._config.max_models
            others = _movable(self._others(model) if full else self._neighbours(model))
            if not others:
                raise OutOfMemoryError("the models that are loaded stay so, and leave no room for it")
            await self.free(min(_idle(others) or others, key=_age))

    async def free_oldest(self, model: Model) -> bool:
        """Unloads the least recently used idle model on the same device; `False` if there is none."""
        idle = _idle(_movable(self._neighbours(model)))
        if not idle:
            return False
        await self.free(min(idle, key=_age))
        return True

    async def free(self, model: Model) -> None:
        """Unloads a model once the requests that use it have ended; new ones wait until it is loaded again.

        Raises:
            OutOfMemoryError: They last longer than `load_timeout`.
        """
        model.takes_requests.clear()
        try:
            async with asyncio.timeout(self._config.load_timeout):
                await model.is_idle.wait()
        except TimeoutError as error:
            raise OutOfMemoryError(
                f"the model {model.name!r}, whose memory is needed, was in use for {self._config.load_timeout:g} s "
                "(load_timeout); try again later"
            ) from error
        else:
            await self._unload(model)
        finally:
            model.takes_requests.set()

    def _fits(self, model: Model) -> bool:
        count, cap = self._config.max_models, self._config.max_model_memory
        if count is not None and len(self._others(model)) >= count:
            return False
        return cap is None or _num_bytes(self._neighbours(model)) + _needed(model) <= cap

    def _others(self, model: Model) -> list[Model]:
        return [other for other in self._models if other is not model and other.service is not None]

    def _neighbours(self, model: Model) -> list[Model]:
        """The other models that are loaded on the same device."""
        return [other for other in self._others(model) if other.device == model.device]


def _needed(model: Model) -> int:
    """Returns the bytes of a model: as of its last load, otherwise at least the size of its file."""
    if model.num_bytes is not None:
        return model.num_bytes
    return 0 if model.file is None else model.file.stat().st_size


def _movable(models: Iterable[Model]) -> list[Model]:
    return [model for model in models if not model.spec.stays_loaded]


def _idle(models: Iterable[Model]) -> list[Model]:
    return [model for model in models if model.is_idle.is_set()]


def _num_bytes(models: Iterable[Model]) -> int:
    return sum(model.num_bytes or 0 for model in models)


def _age(model: Model) -> float:
    return model.last_used
