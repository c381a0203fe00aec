"""Runs the application in this process until a signal ends it."""

import asyncio
import logging
import signal
import socket
import types
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from rocmforge.server.config import ServerConfig

if TYPE_CHECKING:
    from rocmforge.server.models import Models

logger = logging.getLogger("rocmforge.server")

# Clients and proxies keep idle connections for 5 to 60 s. Who closes one first must be the client: a request that the
# server's close crosses on its way is lost.
KEEP_ALIVE_SECONDS = 75


class Server(uvicorn.Server):
    """Drains at the first SIGTERM or SIGINT and ends at once at the second.

    uvicorn itself would close its sockets first: whoever came during the drain found nobody to tell them to come back.
    """

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
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
        self._models: Models = app.state.models
        self._settings = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen and says where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for listening in sockets or []:
            host, port = listening.getsockname()[:2]
            scheme = "http" if self._settings.ssl_certfile is None else "https"
            logger.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes all connections. TLS would wait 30 s for each idle client to say goodbye in its turn."""
        connections: list[Any] = list(self.server_state.connections) if self.config.is_ssl else []
        for connection in connections:
            idle = connection.cycle is None or connection.cycle.response_complete
            if idle and connection.transport.get_write_buffer_size() == 0:
                connection.transport.abort()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: types.FrameType | None) -> None:  # noqa: ARG002 - as uvicorn has it
        """Takes a signal. It may come between any two instructions, so the loop does the work."""
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
            self._models.abort()

    async def _drain(self) -> None:
        await self._models.drain()
        self.should_exit = True


def bind(config: ServerConfig) -> socket.socket:
    """Takes the address, before a model is loaded for it.

    Raises:
        OSError: Something else has it, or it is none of this machine's.
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
    Server(app, config).run([listening])
