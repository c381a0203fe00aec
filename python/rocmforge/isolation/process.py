"""One child process, as its parent sees it: its start, calls and their answers, its end."""

import contextlib
import itertools
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from rocmforge._rocmforge import RemoteOutputs
from rocmforge.errors import EngineDeadError, RocmForgeError
from rocmforge.isolation.images import ImageGoneError, SentImages
from rocmforge.isolation.job import EXIT_DEAD, Job

# The outputs of hundreds of streams in a second. The engine merges outputs that do not fit.
RING_BYTES = 1 << 20
# The parent's path comes first: the child is to find the same packages.
START = (
    "import json, sys; start = json.loads(sys.argv[1]); sys.path[:] = start.pop('path'); "
    "from rocmforge.isolation.child import main; main(**start)"
)
CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


@dataclass(slots=True)
class _Call:
    """A call that the child has not answered."""

    future: Future[Any]
    name: str
    arguments: tuple[object, ...]
    """Its arguments, if it names an image that the child may not keep."""


class ChildProcess:
    """A child and the ends of its socket and its ring. Must be made on a thread that outlives it.

    Args:
        job: The model and settings for the child.
        environment: Its environment.
        folder: Its current folder.
        outputs: What takes its outputs.
    """

    def __init__(self, job: Job, environment: dict[str, str], folder: str, outputs: RemoteOutputs) -> None:
        if not sys.executable or hasattr(sys, "frozen"):
            raise RocmForgeError(
                "isolate: got an interpreter without an executable, expected one to start; leave it out"
            )
        # Entered again by finalizers, which may run anywhere.
        self._lock = threading.RLock()
        self._calls: dict[int, _Call] = {}
        self._images = SentImages()
        self._numbers = itertools.count()
        self._end: str | None = None
        self._killed_for: tuple[str, str] | None = None
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with contextlib.ExitStack() as stack:
            here, there = socket.socketpair()
            stack.callback(there.close)
            ring = [os.memfd_create("rocmforge-ring"), os.eventfd(0), os.eventfd(0)]
            for descriptor in ring:
                stack.callback(os.close, descriptor)
            os.ftruncate(ring[0], RING_BYTES)
            self._connection = Connection(here.detach())
            path = [entry for entry in sys.path if isinstance(entry, str)]
            start = {"path": path, "parent": os.getpid(), "control": there.fileno(), "ring": ring}
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", START, json.dumps(start)],
                stdin=subprocess.DEVNULL,
                pass_fds=(there.fileno(), *ring),
                env=environment,
                cwd=folder,
            )
            memory, written, read = ring
            self._reader = outputs.read(memory, written, read, self._forget, self._broken)
        self._sender = threading.Thread(target=self._send, name="rocmforge-calls", daemon=True)
        self._sender.start()
        self._messages.put(pickle.dumps(job))

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def call(self, name: str, *arguments: object) -> Future[Any]:
        """Calls a function of the child's; the answer comes later.

        Raises:
            EngineDeadError: The child has died.
            TypeError: An argument cannot be handed to another process.
        """
        call = _Call(Future(), name, arguments)
        # It cannot be cancelled: the child answers all the same.
        call.future.set_running_or_notify_cancel()
        self._post(call, with_pixels=False)
        return call.future

    def _post(self, call: "_Call", *, with_pixels: bool) -> None:
        number = next(self._numbers)
        try:
            arguments, names_image = self._images.pickled(call.arguments, with_pixels=with_pixels)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise TypeError(f"{call.name}: an argument cannot be handed to the engine's process: {error}") from error
        if not names_image:
            # They are needed once more only if the child does not keep an image.
            call.arguments = ()
        with self._lock:
            if self._end is not None:
                raise EngineDeadError(self._end)
            self._calls[number] = call
        self._messages.put(pickle.dumps((number, call.name)) + arguments)

    def tell(self, name: str, *arguments: object) -> None:
        """Calls a function of the child's whose answer nobody waits for; a child that has died needs no telling."""
        with contextlib.suppress(EngineDeadError):
            self.call(name, *arguments)

    def messages(self) -> Iterator[tuple[Any, ...]]:
        """Yields the child's messages except answers to calls, until it ends."""
        while True:
            try:
                kind, *rest = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - of our own child
            except (EOFError, OSError):
                return
            except Exception as error:  # noqa: BLE001 - a child that writes nonsense is about to die
                self._broken(str(error))
                return
            if kind in ("result", "error"):
                self._settle(kind, *rest)
            else:
                yield kind, *rest

    def kill(self, reason: str, what: str) -> None:
        """Kills the process.

        Args:
            reason: A word for the metrics.
            what: What it did, for the errors of its requests.
        """
        with self._lock:
            self._killed_for = self._killed_for or (reason, what)
        self._process.kill()

    def end(self) -> tuple[str, str]:
        """Waits for its end, reads what it has left, and frees all that belongs to it. No call goes through any more.

        Returns:
            Why it ended: a word for the metrics, and a text.
        """
        # A child that has closed its socket, and lives, does not answer any more.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._process.kill()
        status = self._process.wait()
        reason, what = self._killed_for or _cause(status)
        with self._lock:
            self._end = f"the engine is dead: its process {what}; try again in some seconds"
            calls, self._calls = self._calls, {}
        self._messages.put(None)
        self._sender.join()
        self._connection.close()
        self._reader.finish()
        for call in calls.values():
            call.future.set_exception(EngineDeadError(self._end))
        return reason, what

    def _send(self) -> None:
        # After its death the socket takes no more.
        with contextlib.suppress(OSError):
            while (message := self._messages.get()) is not None:
                self._connection.send_bytes(message)

    def _settle(self, kind: str, number: int, value: Any) -> None:
        with self._lock:
            call = self._calls.pop(number)
        if kind == "result":
            call.future.set_result(value)
        elif isinstance(value, ImageGoneError):
            try:
                self._post(call, with_pixels=True)
            except EngineDeadError as error:
                call.future.set_exception(error)
        else:
            call.future.set_exception(value)

    def _forget(self, keys: list[int]) -> None:
        for key in keys:
            self.tell("forget", key)

    def _broken(self, problem: str) -> None:
        self.kill("crash", f"wrote what makes no sense ({problem})")


def _cause(status: int) -> tuple[str, str]:
    if status == EXIT_DEAD:
        return "device", "lost its device"
    if status >= 0:
        return "exit", f"ended with status {status}"
    number = -status
    name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"
    word = "abort" if number == signal.SIGABRT else "crash" if number in CRASHES else "kill"
    return word, f"was ended by {name}"
