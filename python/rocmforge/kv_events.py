"""Publishes the content of prefix caches for routers, over ZeroMQ, in vLLM's format (extra `kv-events`).

A message has three parts: the topic, the batch's number (8 bytes, big-endian, from 0) and the batch in msgpack,
`[seconds since the epoch, events, data_parallel_rank]`. An event is a map whose `type` is `BlockStored`, `BlockRemoved`
or `AllBlocksCleared`. docs/scale-out.md describes it.
"""

import contextlib
import logging
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from rocmforge.engine import LoadedModel
from rocmforge.errors import EngineDeadError, InvalidRequestError

try:
    import msgspec
    import zmq
except ModuleNotFoundError as missing:
    raise InvalidRequestError(
        f"KV events: the package {missing.name} is missing, with which they are sent: "
        "pip install 'rocmforge[kv-events]'"
    ) from missing

logger = logging.getLogger("rocmforge.kv_events")

# Events that an engine keeps until they are taken; beyond that it reports its whole content again.
MAX_EVENTS = 100_000
POLL_SECONDS = 0.01
# Batches that ZeroMQ holds for a slow subscriber before it drops them; the subscriber then asks for a replay.
HIGH_WATER_MARK = 100_000
# At the end, subscribers have this time to take the last batches.
LINGER_MILLISECONDS = 1000
REPLAY_POLL_MILLISECONDS = 100
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
# vLLM's name for the memory of the device that computes, whatever device that is.
MEDIUM = "GPU"


class KvEventPublisher:
    """Publishes the events of engines until it is closed, each from a separate thread.

    Args:
        endpoint: Where to publish. `tcp://*:5557`, `ipc://…` and `inproc://…` are bound, `tcp://router:5557` is
            connected to.
        replay_endpoint: Where to bind the socket on which subscribers ask for batches that they missed, if at all.
        buffer_steps: Batches that are kept for a replay.

    Raises:
        InvalidRequestError: An endpoint cannot be used.
    """

    def __init__(self, endpoint: str, replay_endpoint: str | None = None, buffer_steps: int = 10_000) -> None:
        self._lock = threading.Lock()
        self._sent: deque[tuple[bytes, bytes, bytes]] = deque(maxlen=buffer_steps)
        self._next = 0
        self._feeds: list[_Feed] = []
        self._closing = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._replays: threading.Thread | None = None
        try:
            # By vLLM's rule an address of this machine is bound.
            is_bound = "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
            self._publisher = self._socket(zmq.PUB, HIGH_WATER_MARK, "kv_events_endpoint", endpoint, is_bound=is_bound)
            if replay_endpoint is not None:
                # A whole replay fits, and another one after it.
                room = 2 * (buffer_steps + 1)
                socket = self._socket(zmq.ROUTER, room, "kv_events_replay_endpoint", replay_endpoint, is_bound=True)
                self._replays = threading.Thread(
                    target=self._answer, args=(socket,), name="rocmforge-kv-replays", daemon=True
                )
                self._replays.start()
        except InvalidRequestError:
            self._context.destroy()
            raise

    def add(self, engine: LoadedModel, topic: str = "") -> None:
        """Publishes an engine's events until the engine or the publisher is closed, then the removal of all its blocks.

        Args:
            engine: An engine with an empty prefix cache, whose events nobody else reads.
            topic: The first part of its messages. llm-d expects `kv@POD@MODEL`.

        Raises:
            InvalidRequestError: The engine has no prefix cache, or one with content.
            EngineDeadError: The engine is closed, or its process has died.
        """
        for feed in [feed for feed in self._feeds if feed.engine.is_closed]:
            # Its last message comes before the first one of the next engine with the same topic.
            feed.close()
            self._feeds.remove(feed)
        self._feeds.append(_Feed(self, engine, topic))

    def close(self) -> None:
        """Publishes the removal of all blocks, and ends threads and sockets."""
        self._closing.set()
        for feed in self._feeds:
            feed.close()
        self._feeds.clear()
        if self._replays is not None:
            self._replays.join()
        self._context.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def publish(self, topic: bytes, events: list[dict[str, Any]]) -> None:
        """Sends one batch, in whatever thread."""
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        with self._lock:
            message = (topic, self._next.to_bytes(8, "big"), payload)
            self._next += 1
            self._sent.append(message)
            self._publisher.send_multipart(message)

    def _socket(
        self, kind: int, high_water_mark: int, setting: str, endpoint: str, *, is_bound: bool
    ) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(high_water_mark)
        socket.linger = LINGER_MILLISECONDS
        try:
            if is_bound:
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise InvalidRequestError(
                f"{setting}: got {endpoint!r} ({error.strerror}), expected an address like tcp://*:5557 that is free"
            ) from error
        return socket

    def _answer(self, replays: zmq.Socket[bytes]) -> None:
        """Answers those who missed something, until this is closed."""
        with replays:
            while not self._closing.is_set():
                if replays.poll(REPLAY_POLL_MILLISECONDS):
                    self._replay(replays)

    def _replay(self, replays: zmq.Socket[bytes]) -> None:
        request = replays.recv_multipart()
        if len(request) != 3 or len(request[2]) != 8:
            logger.warning("KV events: got a replay request of %d parts, expected the number of a batch", len(request))
            return
        client, _, start = request
        with self._lock:
            # Numbers of equal length compare as their bytes do.
            kept = [message for message in self._sent if message[1] >= start]
        for message in (*kept, (b"", END_OF_REPLAY, b"")):
            replays.send_multipart((client, b"", *message))


class _Feed:
    """A thread that takes the events of one engine and publishes them."""

    def __init__(self, publisher: KvEventPublisher, engine: LoadedModel, topic: str) -> None:
        engine.record_kv_events(MAX_EVENTS)
        self.engine = engine
        self._publisher = publisher
        self._topic = topic.encode()
        self._block_size = engine.config()["block_size"]
        self._is_cleared = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rocmforge-kv-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the log and the thread."""
        self._closing.set()
        self._thread.join()
        with contextlib.suppress(EngineDeadError):
            self.engine.stop_kv_events()

    def _run(self) -> None:
        try:
            while not (self._closing.wait(POLL_SECONDS) or self.engine.is_closed):
                self._publish(self._take())
        except Exception:
            # The engine serves on.
            logger.exception("KV events: no more of %s are published", self.engine.model)
        self._publish([None])

    def _take(self) -> list[tuple[Any, ...] | None]:
        try:
            return self.engine.take_kv_events()
        except EngineDeadError:
            # An isolated engine starts again in another process, with empty blocks.
            return [None]

    def _publish(self, events: list[tuple[Any, ...] | None]) -> None:
        if events and not (self._is_cleared and events == [None]):
            self._publisher.publish(self._topic, wire_events(events, self._block_size))
            self._is_cleared = events[-1] is None


def wire_events(events: list[tuple[Any, ...] | None], block_size: int) -> list[dict[str, Any]]:
    """Translates an engine's events into vLLM's; consecutive blocks of a group become one event.

    Args:
        events: What `take_kv_events` returned.
        block_size: Tokens per block.
    """
    wire: list[dict[str, Any]] = []
    last_of: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case None:
                wire.append({"type": "AllBlocksCleared"})
                last_of.clear()
            case (group, name):
                last = last_of.get(group)
                if last is None or last["type"] != "BlockRemoved":
                    last = {"type": "BlockRemoved", "block_hashes": [], "medium": MEDIUM, "group_idx": group}
                    last_of[group] = last
                    wire.append(last)
                last["block_hashes"].append(name)
            case (group, window, name, parent, token_ids, salt, adapter):
                last = last_of.get(group)
                if last is None or last["type"] != "BlockStored" or last["block_hashes"][-1] != parent:
                    last = {
                        "type": "BlockStored",
                        "block_hashes": [],
                        "parent_block_hash": parent,
                        "token_ids": [],
                        "block_size": block_size,
                        "lora_id": adapter,
                        "medium": MEDIUM,
                        "lora_name": None,
                        "extra_keys": [],
                        "group_idx": group,
                        "kv_cache_spec_kind": "full_attention" if window is None else "sliding_window",
                    }
                    if window is not None:
                        last["kv_cache_spec_sliding_window"] = window
                    last_of[group] = last
                    wire.append(last)
                last["block_hashes"].append(name)
                last["token_ids"] += token_ids
                # Only the first block of a sequence names its salt, as all that follow depend on it.
                last["extra_keys"].append([salt] if parent is None and salt is not None else None)
    return wire
