"""One model of a server: whether it is loaded, who uses it, and when it may go."""

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmforge._rocmforge import inspect_gguf
from rocmforge.async_llm import until
from rocmforge.errors import RocmForgeError
from rocmforge.hub import is_name, local_file, model_file
from rocmforge.server.models.catalog import ModelSpec

if TYPE_CHECKING:
    from rocmforge.server.service import Service


class Model:
    """A model, loaded or not.

    Args:
        spec: What it is.
        on_idle: Called when nobody uses it any more.

    Raises:
        InvalidRequestError: Its name is malformed, or needs a missing package.
        ModelFileError: Ollama's manifest of it is broken.
    """

    def __init__(self, spec: ModelSpec, on_idle: Callable[["Model"], None]) -> None:
        self.spec = spec
        self.chat_template = None if spec.chat_template is None else spec.chat_template.read_text("utf-8")
        self.file = local_file(spec.path)
        """Its file; `None` for a model that is not on this machine before its first load."""
        self._on_idle = on_idle
        self.keep_alive: float | None = None
        """Seconds without a request after which it is unloaded; `None` for never."""
        self.created = int(time.time())
        self.service: Service | None = None
        self.loading: asyncio.Task[None] | None = None
        self.progress = (0, 0)
        """Bytes that the load, or the download before it, has read, and the total."""
        self.is_downloading = False
        self.error: str | None = None
        """Why the last load failed."""
        self.takes_requests = asyncio.Event()
        """Not set while it is unloaded, or about to be: new requests wait, and then load it again."""
        self.takes_requests.set()
        self.is_asleep = False
        """True if it was unloaded for want of requests."""
        self.num_bytes: int | None = None
        """Bytes that it takes on the device, as far as is known: it was loaded before."""
        self.last_used = time.monotonic()
        self.is_idle = asyncio.Event()
        """Set while nobody uses it."""
        self.is_idle.set()
        self._num_users = 0
        # The time and the size of the file whose metadata were read, and the result.
        self._chats: tuple[tuple[int, int], bool | None] | None = None

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.spec.names[0]

    @property
    def device(self) -> str:
        """The device that it is meant for: models of the same one share its memory."""
        return self.spec.settings.get("device", "auto")

    @property
    def state(self) -> str:
        """Its state: `loaded`, `loading`, `sleeping` (a request wakes it) or `unloaded`."""
        if self.service is not None:
            return "loaded"
        if self.loading is not None:
            return "loading"
        return "sleeping" if self.is_asleep else "unloaded"

    def status(self) -> dict[str, Any]:
        """Returns the state with its details, for `/v1/models`."""
        status: dict[str, Any] = {"value": self.state}
        if self.service is not None:
            status["memory_bytes"] = self.num_bytes
        elif self.loading is not None:
            status["stage"] = "download" if self.is_downloading else "load"
            status["done_bytes"], status["total_bytes"] = self.progress
        elif self.error is not None:
            status |= {"failed": True, "error": self.error}
        return status

    def chats(self) -> bool | None:
        """True if it generates text and has a chat template; `None` if its file is not here or cannot be read.

        The metadata of a file is read once, in some milliseconds.
        """
        if (service := self.service) is not None:
            return service.chats
        if self.file is None:
            return None
        try:
            status = self.file.stat()
            version = (status.st_mtime_ns, status.st_size)
            if self._chats is None or self._chats[0] != version:
                self._chats = (version, self._chats_by(self.file))
        except OSError:
            return None
        return self._chats[1]

    def _chats_by(self, file: Path) -> bool | None:
        try:
            report = inspect_gguf(file)
        except RocmForgeError:
            return None
        # Without tasks, the architecture is one that this version cannot run.
        if not report["tasks"]:
            return None
        has_template = bool(self.chat_template or report["metadata"].get("tokenizer.chat_template"))
        return has_template and "generate" in report["tasks"]

    def seconds_left(self) -> float | None:
        """Seconds until it is unloaded, if no request comes; `None` for never."""
        if self.keep_alive is None:
            return None
        idle = time.monotonic() - self.last_used if self.is_idle.is_set() else 0.0
        return self.keep_alive - idle

    async def fetch(self) -> Path:
        """Finds the file, and downloads it if need be; cancelling the task ends the download.

        Raises:
            RocmForgeError: The name means several files, or what was downloaded is not what the hub has.
            OSError: There is no such model, or the hub cannot be reached or refuses.
        """
        if not is_name(self.spec.path):
            return self.spec.path
        left = threading.Event()
        find = functools.partial(model_file, self.spec.path, progress=False, on_load=until(left, self.report))
        self.is_downloading = True
        try:
            self.file = await asyncio.to_thread(find)
            return self.file
        finally:
            left.set()
            self.is_downloading = False
            self.progress = (0, 0)

    def report(self, done: int, total: int) -> None:
        """Records the progress of the load, from any thread."""
        self.progress = (done, total)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps the model while the block runs: once it is loaded, it is not unloaded."""
        self._num_users += 1
        self.is_idle.clear()
        try:
            yield
        finally:
            self._num_users -= 1
            if self._num_users == 0:
                self.is_idle.set()
                self._on_idle(self)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keeps it for a request: its time without requests begins when the block ends."""
        with self.held():
            self.last_used = time.monotonic()
            try:
                yield
            finally:
                self.last_used = time.monotonic()
