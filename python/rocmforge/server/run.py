"""Runs the application in this process until a signal ends it."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from rocmforge.server.config import ServerConfig
from rocmforge.server.http.connections import KEEP_ALIVE_SECONDS, SHARE, Waiting, connection_limit, protocol
from rocmforge.server.http.threads import READING, WORK

if TYPE_CHECKING:
    from rocmforge.server.models.registry import Models

logger = logging.getLogger("rocmforge.server")

# Seconds for clients to read the last answers, once all are complete.
LAST_SECONDS = 1.0
# Seconds for which a thread may hold the GIL while another waits. Bodies are parsed on threads.
SWITCH_SECONDS = 0.001
# A full collection holds the GIL for 100 ms while bodies of thousands of messages are alive, and the frequent ones
# have left it little to find. So there are a hundredth as many as Python has by default.
GC_THRESHOLDS = (700, 10, 1000)


class Server(uvicorn.Server):
    """Drains at the first SIGTERM or SIGINT and ends at once at the second.

    uvicorn would close its sockets first, so new clients would get no answer during the drain. It would also wait for
    ever for a client that sends half a request, or that does not read its answer.
    """

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        waiting = Waiting(connection_limit(config))
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol(config, waiting),
                # New connections take descriptors before the server can close others.
                backlog=min(2048, max(1, round(waiting.limit * (1 / SHARE - 1)))),
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
                h11_max_incomplete_event_size=config.max_header_bytes,
                log_config=None,
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                server_header=False,
                lifespan="on",
            )
        )
        self._waiting = waiting
        self._models: Models = app.state.models
        self._settings = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._is_hurried = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen, and logs the address."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for listening in sockets or []:
            host, port = listening.getsockname()[:2]
            scheme = "http" if self._settings.ssl_certfile is None else "https"
            url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
            logger.info("listening on %s", url)
            if sys.stderr is not None and sys.stderr.isatty():
                sys.stderr.write(greeting(url, self._models.names))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes all connections: idle ones at once, the others when their answer has been read."""
        closing = asyncio.create_task(self._close_connections())
        await super().shutdown(sockets)
        await closing

    async def _close_connections(self) -> None:
        connections: set[Any] = self.server_state.connections
        loop = asyncio.get_running_loop()
        begun = loop.time()
        # uvicorn continues its shutdown when there is neither a connection nor a task.
        while connections or self.server_state.tasks:
            is_over = self._is_hurried.is_set() or loop.time() > begun + LAST_SECONDS
            for connection in list(connections):
                # TLS would wait 30 s for each idle client to acknowledge the close.
                is_idle = connection in self._waiting.connections
                if is_over or (is_idle and connection.transport.get_write_buffer_size() == 0):
                    connection.end()
            # A task ends by itself when its client has left, unless it waits for something else.
            if loop.time() > begun + 2 * LAST_SECONDS:
                for task in list(self.server_state.tasks):
                    task.cancel()
            await asyncio.sleep(0.02)

    def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:  # noqa: ARG002 - as uvicorn has it
        """Handles a signal. It may come between any two instructions, so the event loop does the work."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._stop, signal.Signals(sig).name)

    def _stop(self, name: str) -> None:
        if self._draining is None:
            logger.info("%s: shutting down", name)
            self._draining = asyncio.ensure_future(self._drain())
        else:
            logger.warning("%s again: running requests are aborted", name)
            self._is_hurried.set()
            self._models.abort()

    async def _drain(self) -> None:
        await self._models.drain()
        self.should_exit = True


def greeting(url: str, names: Sequence[str]) -> str:
    """Returns the first lines of output on a terminal.

    Args:
        url: The address of the server.
        names: The names of its models.
    """
    # A browser cannot open the wildcard address.
    url = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    return (
        f"  Chat page        {url}/\n"
        f"  OpenAI base URL  {url}/v1\n"
        f"  Models           {len(names)} ({url}/v1/models)\n"
        "  Ctrl-C           finishes running requests and stops; a second one stops at once\n"
    )


def bind(config: ServerConfig) -> socket.socket:
    """Binds the address, before any model is loaded.

    Raises:
        OSError: The address is in use, or does not belong to this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        message = f"cannot listen on {config.host}:{config.port}: {error.strerror}; give another host or port"
        raise OSError(message) from error
    return listening


def run(app: FastAPI, config: ServerConfig, listening: socket.socket) -> None:
    """Serves on a socket of `bind` until a signal ends it."""
    sys.setswitchinterval(SWITCH_SECONDS)
    # The garbage collector need not scan objects that live as long as the server.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    Server(app, config).run([listening])
    if WORK.is_busy or READING.is_busy:
        logger.warning("work of clients that have left is not waited for")
        logging.shutdown()
        # A thread that returns from Rust during Python's shutdown would crash the process.
        os._exit(0)
