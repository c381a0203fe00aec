"""Keeps a child process running: starts it, watches it, and replaces it when it dies."""

import logging
import os
import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from rocmforge._rocmforge import RemoteOutputs
from rocmforge.display.progress import Report
from rocmforge.errors import EngineDeadError, InvalidRequestError
from rocmforge.isolation.job import Hello, Job
from rocmforge.isolation.process import ChildProcess
from rocmforge.settings import EngineSettings
from rocmforge.stats import MemoryUsage, Stats

logger = logging.getLogger("rocmforge.isolation")

REASONS = ("abort", "crash", "device", "exit", "hang", "kill", "load")
"""Why a process was replaced: SIGABRT, another fault, a lost device, its own exit, the watchdog, another signal, or a
failed load."""

# After more restarts within the window the engine stays dead, because a repeated failure has a lasting cause.
MAX_RESTARTS = 5
WINDOW_SECONDS = 600.0
# The delay before the second restart within the window; it doubles with each further one.
BACKOFF_SECONDS = 0.5
# The limit for a load without any progress.
LOAD_SECONDS = 600.0
# Polls of the child during the time of the watchdog, and the longest time between two polls.
LOOKS = 8
LOOK_SECONDS = 1.0
# The time for an answer with statistics; after it, the last known statistics are used.
STATS_SECONDS = 0.25


class Supervisor:
    """One thread starts children and reads their messages; a second thread is the watchdog.

    Args:
        job: The model and settings for the children.
        watchdog: Seconds after which a child is killed: a child with requests that makes no step, or any child that
            does not answer.
    """

    def __init__(self, job: Job, watchdog: float) -> None:
        self.outputs = RemoteOutputs()
        self._hello: Hello | None = None
        self.restarts = dict.fromkeys(REASONS, 0)
        self._job = job
        self._watchdog = watchdog
        # A restart uses the environment and the folder of the first start.
        self._environment = dict(os.environ)
        self._folder = os.getcwd()  # noqa: PTH109 - as it is, with links
        self._owner = os.getpid()
        # Reentrant, because finalizers may run anywhere.
        self._lock = threading.RLock()
        self._child: ChildProcess | None = None
        self._is_ready = False
        self._stats: Stats | None = None
        self._seen = 0.0
        self._absent = "it is being loaded"
        self._is_dead = False
        self._closing = threading.Event()
        self._restarted: deque[float] = deque()
        self._first: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rocmforge-supervisor", daemon=True)
        self._watching = threading.Thread(target=self._watch, name="rocmforge-watchdog", daemon=True)

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        settings: EngineSettings,
        *,
        watchdog: float,
        only_on_gpu: bool,
        progress: Report,
    ) -> Self | None:
        """Starts a child, and waits until it has loaded the model.

        Exceptions of the child's load and of `progress` are raised here, after the child has ended.

        Returns:
            The supervisor; `None` with `only_on_gpu` if the child found no GPU.
        """
        if not watchdog > 0:
            raise InvalidRequestError(f"watchdog: got {watchdog}, expected more than 0 seconds")
        level = logging.getLogger("rocmforge").getEffectiveLevel()
        self = cls(Job(Path(model).absolute(), settings, only_on_gpu, level), watchdog)
        self._thread.start()
        try:
            while True:
                match self._first.get():
                    case ("progress", done, total):
                        progress(done, total)
                    case ("failed", error):
                        raise error  # noqa: TRY301 - the handler below undoes the load
                    case ("cpu",):
                        self.close()
                        return None
                    case ("ready", _):
                        self._watching.start()
                        return self
        except BaseException:
            self.close()
            raise

    @property
    def model(self) -> Path:
        """The model's file."""
        return self._job.model

    @property
    def is_restarting(self) -> bool:
        """True if there is no engine now, but a new one will follow."""
        return not (self._is_ready or self.is_over)

    @property
    def is_over(self) -> bool:
        """True if no engine will follow; also in a forked process."""
        return self._is_dead or self.was_closed or os.getpid() != self._owner

    @property
    def was_closed(self) -> bool:
        """True if `close` was called."""
        return self._closing.is_set()

    def call(self, name: str, *arguments: object) -> Future[Any]:
        """Calls a function in the child.

        Raises:
            EngineDeadError: There is no child at present.
        """
        self.check_process()
        with self._lock:
            child = self._child if self._is_ready and not self.was_closed else None
        if child is None:
            raise EngineDeadError(f"the engine is dead: {'it was closed' if self.was_closed else self._absent}")
        return child.call(name, *arguments)

    def tell(self, name: str, *arguments: object) -> None:
        """Calls a function in the child without waiting for an answer; does nothing without a child."""
        with self._lock:
            child = self._child if self._is_ready and os.getpid() == self._owner else None
        if child is not None:
            child.tell(name, *arguments)

    def record_kv_events(self, max_events: int) -> None:
        """Starts the log of KV events in the child and in its successors."""
        before = self._job
        # If this child dies meanwhile, the next one starts the log as well.
        self._job = replace(before, max_kv_events=max_events)
        try:
            self.call("record_kv_events", max_events).result()
        except BaseException:
            self._job = before
            raise

    def stop_kv_events(self) -> None:
        """Ends the log of KV events."""
        self._job = replace(self._job, max_kv_events=None)
        self.tell("stop_kv_events")

    def check_process(self) -> None:
        """Refuses to serve in a forked process.

        Raises:
            EngineDeadError: This process was forked from the owner.
        """
        if os.getpid() != self._owner:
            raise EngineDeadError(
                f"this engine belongs to process {self._owner} and cannot be used in process {os.getpid()} after fork; "
                "load it there"
            )

    def stats(self) -> Stats:
        """Returns the child's statistics; if it does not answer at once, the last known ones."""
        try:
            stats: Stats = self.call("stats").result(STATS_SECONDS)
        except (EngineDeadError, TimeoutError):
            self.check_process()
        else:
            self._stats = stats
        return self._stats or self.loaded.stats

    def memory(self) -> MemoryUsage:
        """Returns the engine's memory in bytes; zero while there is no engine."""
        self.check_process()
        return self.loaded.memory if self._is_ready else MemoryUsage(0, 0, 0, 0)

    @property
    def loaded(self) -> Hello:
        """The report of the last engine that was loaded.

        Raises:
            EngineDeadError: No engine was loaded.
        """
        if self._hello is None:
            raise EngineDeadError(f"the engine is dead: {self._absent}")
        return self._hello

    def close(self) -> None:
        """Closes the engine, and waits for the end of its process."""
        if os.getpid() != self._owner:
            return
        if self._is_ready:
            # The last statistics, which stay available.
            self.stats()
            self._closing.set()
            self._seen = time.monotonic()
            self.tell("close")
            # A child that writes its KV cache to files reports how far it is.
            while self._thread.is_alive() and time.monotonic() - self._seen < self._watchdog:
                self._thread.join(min(LOOK_SECONDS, self._watchdog / LOOKS))
        self.discard()
        self._thread.join()

    def discard(self) -> None:
        """Kills the child without waiting, for a finalizer, which may run on any thread."""
        if os.getpid() == self._owner:
            self._closing.set()
            self._kill("kill", "was ended")

    def end(self) -> None:
        """Ends the engine for a finalizer: closes one that has files to write, so that it writes them."""
        has_files = self._hello is not None and self._hello.stats.kv_offload_disk_capacity > 0
        # A thread cannot wait for itself.
        if has_files and threading.current_thread() not in (self._thread, self._watching):
            self.close()
        else:
            self.discard()

    def _kill(self, reason: str, what: str) -> None:
        with self._lock:
            child = self._child
        if child is not None:
            child.kill(reason, what)

    def _run(self) -> None:
        """Runs one child after another. The kernel kills a child when the thread that started it ends: this thread."""
        while not self.was_closed:
            try:
                child = ChildProcess(self._job, self._environment, self._folder, self.outputs)
            except Exception as error:  # noqa: BLE001 - raised where the model is loaded
                if self._hello is None:
                    self._first.put(("failed", error))
                reason, what = "load", f"could not be started ({error})"
            else:
                with self._lock:
                    self._child, self._seen = child, time.monotonic()
                if self.was_closed:
                    self.discard()
                failure = self._listen(child)
                with self._lock:
                    self._is_ready, self._child = False, None
                reason, what = child.end()
                if failure is not None:
                    reason, what = "load", f"could not load the model ({failure})"
            if not self._goes_on(reason, what):
                return

    def _listen(self, child: ChildProcess) -> Exception | None:
        """Reads the messages of a child until its end; returns the error of a failed load."""
        failure = None
        for message in child.messages():
            match message:
                case ("log", name, level, text):
                    logging.getLogger(name).log(level, text)
                case ("ready", hello):
                    is_first = self._hello is None
                    with self._lock:
                        self._hello, self._stats, self._is_ready = hello, hello.stats, True
                    logger.info("the engine runs in process %d", child.pid)
                    if is_first:
                        self._first.put(message)
                case _:
                    self._seen = time.monotonic()
                    failure = message[1] if message[0] == "failed" else failure
                    if self._hello is None:
                        self._first.put(message)
        return failure

    def _goes_on(self, reason: str, what: str) -> bool:
        """Ends the requests of a dead child; returns false if no child is to follow."""
        now = time.monotonic()
        while self._restarted and now - self._restarted[0] > WINDOW_SECONDS:
            self._restarted.popleft()
        count = len(self._restarted)
        if self._stats is not None:
            self._stats = _without_requests(self._stats)
        if self._hello is None:
            # The child may have reported an error before.
            self._first.put(("failed", EngineDeadError(f"the engine is dead: its process {what} during the load")))
            return False
        if self.was_closed:
            self.outputs.fail("it was closed")
            return False
        if count >= MAX_RESTARTS:
            self._absent = (
                f"its process {what}, and was started again {count} times in {WINDOW_SECONDS:.0f} s already: "
                "load the model again"
            )
            self._is_dead = True
            logger.error("the engine is dead: %s", self._absent)
            self.outputs.fail(self._absent)
            return False
        self._absent = f"its process {what}; another one is being started: try again in a few seconds"
        self.restarts[reason] += 1
        self._restarted.append(now)
        delay = BACKOFF_SECONDS * 2 ** (count - 1) if count else 0.0
        logger.error("the process of the engine %s; it is started again in %.1f s", what, delay)
        self.outputs.fail(self._absent)
        return not self._closing.wait(delay)

    def _watch(self) -> None:
        """Kills a child that makes no step, or that does not answer, within the time of the watchdog."""
        watched: ChildProcess | None = None
        answer: Future[Stats] | None = None
        num_steps = -1
        while not self._closing.wait(min(LOOK_SECONDS, self._watchdog / LOOKS)) and not self._is_dead:
            with self._lock:
                child, is_ready = self._child, self._is_ready
            now = time.monotonic()
            if child is None:
                continue
            if not is_ready:
                if now - self._seen > LOAD_SECONDS:
                    child.kill("hang", f"made no progress in its load for {LOAD_SECONDS:.0f} s")
                continue
            if child is not watched:
                watched, answer, self._seen = child, None, now
            if answer is not None and answer.done() and answer.exception() is None:
                stats, answer = answer.result(), None
                if not (stats.num_running or stats.num_waiting) or stats.engine_steps != num_steps:
                    self._seen = now
                self._stats, num_steps = stats, stats.engine_steps
            if now - self._seen > self._watchdog:
                child.kill("hang", f"made no step for {self._watchdog:g} s")
            elif answer is None:
                answer = self._look(child)

    def _look(self, child: ChildProcess) -> "Future[Stats] | None":
        try:
            return child.call("stats")
        except EngineDeadError:
            return None


def _without_requests(stats: Stats) -> Stats:
    """Returns the statistics of a dead process: without requests, and with all blocks free."""
    return replace(
        stats,
        num_running=0,
        num_waiting=0,
        blocks_free=stats.blocks_total,
        blocks_cached=0,
        blocks_owned=0,
        state_slots_free=stats.state_slots_total,
        state_slots_cached=0,
        state_slots_owned=0,
    )
