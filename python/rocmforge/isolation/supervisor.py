"""Keeps a child process running: starts it, watches it, and starts another one when it has died."""

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
from rocmforge.errors import EngineDeadError, InvalidRequestError
from rocmforge.isolation.job import Hello, Job
from rocmforge.isolation.process import ChildProcess
from rocmforge.progress import Report
from rocmforge.settings import EngineSettings
from rocmforge.stats import MemoryUsage, Stats

logger = logging.getLogger("rocmforge.isolation")

REASONS = ("abort", "crash", "device", "exit", "hang", "kill", "load")
"""Why a process was replaced: SIGABRT, another fault, a lost device, an end by itself, the watchdog, another signal, or
that the one before it did not come up."""

# More restarts within the window, and the engine stays dead: what kills each of them is no accident.
MAX_RESTARTS = 5
WINDOW_SECONDS = 600.0
# Before the second restart within the window; twice as long before each that follows.
BACKOFF_SECONDS = 0.5
# A load that is at a restart, without any progress.
LOAD_SECONDS = 600.0
# Looks at the child in each time of the watchdog, and the longest time between two of them.
LOOKS = 8
LOOK_SECONDS = 1.0
# For statistics; those of the last look are given where the child takes longer.
STATS_SECONDS = 0.25


class Supervisor:
    """A thread that starts children and listens to them, and one that looks whether they go on.

    Args:
        job: What the children load.
        watchdog: Seconds without a step after which a child that has requests, or an answer that any child owes, is
            killed.
    """

    def __init__(self, job: Job, watchdog: float) -> None:
        self.outputs = RemoteOutputs()
        self._hello: Hello | None = None
        self.restarts = dict.fromkeys(REASONS, 0)
        self._job = job
        self._watchdog = watchdog
        # A restart is to find what the first start found.
        self._environment = dict(os.environ)
        self._folder = os.getcwd()  # noqa: PTH109 - as it is, with links
        self._owner = os.getpid()
        # Entered again by finalizers, which may run anywhere.
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
        """Starts a child and waits until it has loaded the model; `None` where it should load on a GPU and has none.

        What the child's load raises, and what `progress` raises, is raised here, and nothing is left of the child.
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
                        raise error  # noqa: TRY301 - here the load is undone
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
        """Whether there is no engine now, and will be."""
        return not (self._is_ready or self.is_over)

    @property
    def is_over(self) -> bool:
        """Whether there will be no engine any more; so it is in a forked process."""
        return self._is_dead or self.was_closed or os.getpid() != self._owner

    @property
    def was_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def call(self, name: str, *arguments: object) -> Future[Any]:
        """Calls a function of the child's.

        Raises:
            EngineDeadError: There is no child now.
        """
        self.check_process()
        with self._lock:
            child = self._child if self._is_ready and not self.was_closed else None
        if child is None:
            raise EngineDeadError(f"the engine is dead: {'it was closed' if self.was_closed else self._absent}")
        return child.call(name, *arguments)

    def tell(self, name: str, *arguments: object) -> None:
        """Calls a function whose answer nobody waits for; without a child nothing is to be done."""
        with self._lock:
            child = self._child if self._is_ready and os.getpid() == self._owner else None
        if child is not None:
            child.tell(name, *arguments)

    def record_kv_events(self, max_events: int) -> None:
        """Lets the child log KV events, and each that takes its place from its start on."""
        before = self._job
        # If this child dies meanwhile, the next one is to know.
        self._job = replace(before, max_kv_events=max_events)
        try:
            self.call("record_kv_events", max_events).result()
        except BaseException:
            self._job = before
            raise

    def stop_kv_events(self) -> None:
        """Ends those logs."""
        self._job = replace(self._job, max_kv_events=None)
        self.tell("stop_kv_events")

    def check_process(self) -> None:
        """Refuses to serve in a forked process.

        Raises:
            EngineDeadError: This is one.
        """
        if os.getpid() != self._owner:
            raise EngineDeadError(
                f"this engine belongs to process {self._owner} and cannot be used in process {os.getpid()} after fork; "
                "load it there"
            )

    def stats(self) -> Stats:
        """The child's statistics; where it does not answer at once, those of the last look at it."""
        try:
            stats: Stats = self.call("stats").result(STATS_SECONDS)
        except (EngineDeadError, TimeoutError):
            self.check_process()
        else:
            self._stats = stats
        return self._stats or self.loaded.stats

    def memory(self) -> MemoryUsage:
        """The engine's memory; none while there is no engine."""
        self.check_process()
        return self.loaded.memory if self._is_ready else MemoryUsage(0, 0, 0, 0)

    @property
    def loaded(self) -> Hello:
        """The description that the last engine to come up has given of itself."""
        if self._hello is None:
            raise EngineDeadError(f"the engine is dead: {self._absent}")
        return self._hello

    def close(self) -> None:
        """Closes the engine and waits for the end of its process."""
        if os.getpid() != self._owner:
            return
        if self._is_ready:
            # The last ones, which are told from now on.
            self.stats()
            self._closing.set()
            self.tell("close")
            self._thread.join(self._watchdog)
        self.discard()
        self._thread.join()

    def discard(self) -> None:
        """Kills the child and waits for nothing: for a finalizer, which may run on any thread."""
        if os.getpid() == self._owner:
            self._closing.set()
            self._kill("kill", "was ended")

    def _kill(self, reason: str, what: str) -> None:
        with self._lock:
            child = self._child
        if child is not None:
            child.kill(reason, what)

    def _run(self) -> None:
        """One child after the other. The system kills a child with the thread that has started it: this one."""
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
        """Hears what a child says until its end; returns why it has not come up."""
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
        """Ends the requests of a child that is gone; `False` where no other one is to follow."""
        now = time.monotonic()
        while self._restarted and now - self._restarted[0] > WINDOW_SECONDS:
            self._restarted.popleft()
        count = len(self._restarted)
        if self._stats is not None:
            self._stats = _without_requests(self._stats)
        if self._hello is None:
            # It has said why, unless it could not.
            self._first.put(("failed", EngineDeadError(f"the engine is dead: its process {what} during the load")))
            return False
        if self.was_closed:
            self.outputs.fail("it was closed")
            return False
        if count >= MAX_RESTARTS:
            self._absent = (
                f"its process {what}, and was started again {count} times in {WINDOW_SECONDS:.0f} s already: "
                "load the model anew"
            )
            self._is_dead = True
            logger.error("the engine is dead: %s", self._absent)
            self.outputs.fail(self._absent)
            return False
        self._absent = f"its process {what}; another one is being started: try again in some seconds"
        self.restarts[reason] += 1
        self._restarted.append(now)
        delay = BACKOFF_SECONDS * 2 ** (count - 1) if count else 0.0
        logger.error("the process of the engine %s; it is started again in %.1f s", what, delay)
        self.outputs.fail(self._absent)
        return not self._closing.wait(delay)

    def _watch(self) -> None:
        """Kills a child that makes no step, or does not answer, for the time of the watchdog."""
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
    """The counters of a process that is gone."""
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
