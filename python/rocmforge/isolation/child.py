"""The child process: loads the engine and answers its parent's calls, for as long as that lives."""

import contextlib
import ctypes
import io
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from rocmforge._rocmforge import Engine, Image, PoolingParams, SamplingParams, uses_gpu
from rocmforge.errors import InvalidRequestError, RocmForgeError
from rocmforge.isolation.images import ImageGoneError
from rocmforge.isolation.job import EXIT_DEAD, Hello, Job
from rocmforge.prompts import Prompt
from rocmforge.requests.options import RequestOptions

# Threads for calls that wait for the engine, or compute.
SLOW_CALLS = 4
# The interval between two reports of an engine that is being closed.
CLOSE_LOOK_SECONDS = 0.5
PR_SET_PDEATHSIG = 1


def main(parent: int, control: int, ring: list[int]) -> None:
    """Serves until the parent closes the engine or ends; then the process ends.

    Args:
        parent: The parent's process id.
        control: Descriptor of the socket.
        ring: Descriptors of the ring's files.
    """
    # A signal to the whole group is the parent's to act upon: it may let requests finish.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _die_with(parent)
    os._exit(_Child(Connection(control)).run(ring))


def _die_with(parent: int) -> None:
    """Lets the system kill this process when its parent dies: the end of the socket wakes no process that hangs."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


class _Child(logging.Handler):
    """Talks to the parent. As a handler, it hands the engine's messages to the parent's log."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._sending = threading.Lock()

    def run(self, ring: list[int]) -> int:
        """Serves; returns the exit status."""
        try:
            job: Job = self._connection.recv()
            logger = logging.getLogger("rocmforge")
            logger.addHandler(self)
            # It is not known yet if the engine runs here; if not, the parent reports all of it again.
            logger.setLevel(logging.ERROR)
            logger.propagate = False
            engine = self._load(job)
            return 0 if engine is None else self._serve(engine, ring)
        except (EOFError, OSError):
            # The parent is gone, or has let go of this process.
            return 0

    def _load(self, job: Job) -> Engine | None:
        try:
            if job.only_on_gpu and not uses_gpu(**job.settings):
                self._send("cpu")
                return None
            logging.getLogger("rocmforge").setLevel(job.log_level)
            engine = Engine(job.model, progress=lambda *done: self._send("progress", *done), **job.settings)
            if job.max_kv_events is not None:
                engine.record_kv_events(job.max_kv_events)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            self._send("failed", _plain(error))
            return None
        try:
            _, no_tokenizer = engine.tokenizer, None
        except InvalidRequestError as error:
            no_tokenizer = error
        hello = Hello(
            engine.config(),
            engine.sampling_defaults(),
            engine.describe(),
            engine.memory(),
            engine.stats(),
            engine.mmproj,
            no_tokenizer,
        )
        self._send("ready", hello)
        return engine

    def _serve(self, engine: Engine, ring: list[int]) -> int:
        memory, written, read = ring
        inbox = engine.ring_inbox(memory, written, read)
        # It has opened them for itself.
        for descriptor in ring:
            os.close(descriptor)

        def submit(
            key: int,
            prompt: Prompt,
            params: SamplingParams | PoolingParams,
            options: RequestOptions,
            images: Sequence[Image],
        ) -> tuple[str, list[int]]:
            return inbox.submit(key, prompt, params, images=images, **options)

        quick: dict[str, Callable[..., Any]] = {
            "submit": submit,
            "forget": inbox.forget,
            "abort": engine.abort,
            "stats": engine.stats,
            "record": engine.record,
            "block_map": engine.block_map,
            "state_map": engine.state_map,
            "record_kv_events": engine.record_kv_events,
            "stop_kv_events": engine.stop_kv_events,
        }
        slow: dict[str, Callable[..., Any]] = {
            "waiting": engine.waiting,
            "take_kv_events": engine.take_kv_events,
            "image_tokens": engine.image_tokens,
            "prepare": engine.prepare,
            "prompt_logits": engine.prompt_logits,
            "reset_prefix_cache": engine.reset_prefix_cache,
            "check_integrity": engine.check_integrity,
        }
        with ThreadPoolExecutor(SLOW_CALLS) as pool:
            # An engine that has died is closed; the parent's calls come often enough to see it soon.
            while not engine.is_closed:
                message = io.BytesIO(self._connection.recv_bytes())
                number, name = pickle.load(message)  # noqa: S301 - of our own parent
                if name == "close":
                    self._close(engine)
                    return 0
                try:
                    arguments = pickle.load(message)  # noqa: S301 - of our own parent
                except ImageGoneError as error:
                    self._send("error", number, error)
                    continue
                if name in slow:
                    pool.submit(self._answer, number, slow[name], arguments)
                elif name == "submit" and arguments[-1]:
                    # The engine resizes the images.
                    pool.submit(self._answer, number, submit, arguments)
                else:
                    self._answer(number, quick[name], arguments)
        # Its last outputs are still on their way.
        engine.close()
        return EXIT_DEAD

    def _close(self, engine: Engine) -> None:
        """Closes the engine. While it writes its KV cache to files, the parent hears that it goes on."""
        is_closed = threading.Event()

        def report() -> None:
            written = -1
            # Without a parent nobody waits.
            with contextlib.suppress(OSError):
                while not is_closed.wait(CLOSE_LOOK_SECONDS):
                    before, written = written, engine.stats().kv_offload_disk_written
                    if written != before:
                        self._send("progress", written, written)

        thread = threading.Thread(target=report, name="rocmforge-closing", daemon=True)
        thread.start()
        engine.close()
        is_closed.set()
        thread.join()

    def _answer(self, number: int, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            result = call(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
            self._send("error", number, _plain(error))
        else:
            self._send("result", number, result)

    def emit(self, record: logging.LogRecord) -> None:
        """Hands a message to the parent's log."""
        # Without a parent there is no log.
        with contextlib.suppress(OSError):
            self._send("log", record.name, record.levelno, record.getMessage())

    def _send(self, *message: object) -> None:
        with self._sending:
            self._connection.send(message)


def _plain(error: Exception) -> Exception:
    """The error, as far as it can be handed to another process."""
    try:
        pickle.dumps(error)
    except Exception:  # noqa: BLE001 - any class may refuse in its own way
        return RocmForgeError(str(error))
    return error
