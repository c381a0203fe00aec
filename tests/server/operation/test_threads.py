"""The threads for clients' work: taken in turn, never all by one, and nothing is done for who has left."""

import asyncio
import signal
import subprocess
import sys
import threading

import pytest
from rocmforge.executors import EXECUTOR, to_thread
from rocmforge.server.errors import ApiError
from rocmforge.server.http.threads import MAX_WAITING, Threads

COUNT = 4
WAIT_SECONDS = 60


@pytest.fixture
def held():
    """Work that lasts until the test ends."""
    event = threading.Event()
    yield lambda: event.wait(WAIT_SECONDS)
    event.set()


def test_no_client_can_take_all(held):
    """H4: one client fills its half, and others are served at once."""
    threads = Threads(COUNT)
    one = threads.of("one")
    stuck = [one.submit(held) for _ in range(100)]
    assert threads.of("two").submit(lambda: "done").result(WAIT_SECONDS) == "done"
    assert sum(future.running() for future in stuck) == COUNT // 2
    assert threads.is_busy


def test_clients_take_turns(held):
    """H4: who has sent one piece of work does not wait for a thousand of another."""
    threads, order = Threads(1), []
    release = threading.Event()
    first = threads.submit("one", lambda: release.wait(WAIT_SECONDS))
    many = [threads.submit("one", lambda: order.append("one")) for _ in range(50)]
    few = [threads.submit(name, lambda name=name: order.append(name)) for name in ("two", "three")]
    release.set()
    for future in (first, *many, *few):
        future.result(WAIT_SECONDS)
    assert {"two", "three"} <= set(order[:4])
    assert len(order) == 52


async def test_work_of_who_has_left_is_not_begun(held):
    """H4: cancelling the task cancels what waits for a thread."""
    threads, done = Threads(2), []
    token = EXECUTOR.set(threads.of("one"))
    try:
        running = asyncio.ensure_future(to_thread(held))
        waiting = [asyncio.ensure_future(to_thread(done.append, index)) for index in range(10)]
        await asyncio.sleep(0.1)
        for task in waiting[:-1]:
            task.cancel()
        running.cancel()
    finally:
        EXECUTOR.reset(token)
    # The thread is still held: what was cancelled goes when its turn comes.
    assert threads.of("two").submit(lambda: 1).result(WAIT_SECONDS) == 1
    assert done == []
    waiting[-1].cancel()


def test_what_waits_is_bounded(held):
    """H4: more than so much of one client's work is refused with a time to come back; cancelled work makes room."""
    threads = Threads(1)
    futures = [threads.submit("one", held) for _ in range(MAX_WAITING)]
    with pytest.raises(ApiError) as refused:
        while True:
            futures.append(threads.submit("one", held))
    assert refused.value.status_code == 429
    assert "Retry-After" in (refused.value.headers or {})
    assert threads.submit("two", lambda: 1)
    for future in futures[1:]:
        future.cancel()
    threads.submit("one", held)


def test_errors_are_those_of_the_work():
    """H4: an error reaches who waits, and the thread goes on."""
    threads = Threads(1)

    def fail():
        raise KeyError("a")

    with pytest.raises(KeyError):
        threads.submit("one", fail).result(WAIT_SECONDS)
    assert threads.submit("one", lambda: 1).result(WAIT_SECONDS) == 1


# A server with a thread that tokenises for a client for ever.
BUSY_SERVER = """
import sys
from rocmforge import AsyncLLM, Tokenizer, log
from rocmforge._rocmforge import CancelScope
from rocmforge.server import ServerConfig, create_app
from rocmforge.server.run import bind, run
from rocmforge.server.http.threads import WORK

tokenizer = Tokenizer(sys.argv[1])

def work():
    while True:
        tokenizer.encode("ab" * 500)

log.show(20)
config = ServerConfig(port=0)
with bind(config) as listening:
    app = create_app(AsyncLLM(sys.argv[1], num_threads=1, device="cpu"), config)
    WORK.submit("one", lambda: CancelScope().run(work))
    run(app, config, listening)
"""


def test_a_thread_that_tokenises_does_not_hold_up_the_end(model):
    """H4: nobody waits for it at SIGTERM, and the process does not crash as it comes back."""
    command = [sys.executable, "-c", BUSY_SERVER, str(model)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        log = ""
        while "listening on" not in log:
            line = server.stderr.readline()
            assert line, log
            log += line
        server.send_signal(signal.SIGTERM)
        _, rest = server.communicate(timeout=WAIT_SECONDS)
    assert server.returncode == 0, log + rest
    assert "work of clients that have left is not waited for" in rest
    assert "Traceback" not in rest
