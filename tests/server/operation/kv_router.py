"""A router as the public ones are: it decodes KV events by its own types and keeps an index of what can be hit."""

import time
from collections import defaultdict

import msgspec
import zmq

WAIT_SECONDS = 20.0


class Event(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """The events of vLLM 0.33.0, by their fields."""


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(Event):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(EventBatch)


class Cache:
    """One engine's prefix cache, as its events tell it."""

    def __init__(self):
        self.events = []
        # Each block by its group and its name: the name of the one before it, its tokens, its salt.
        self.blocks = {}

    def take(self, event):
        self.events.append(event)
        match event:
            case BlockStored():
                self.store(event)
            case BlockRemoved():
                for name in event.block_hashes:
                    del self.blocks[event.group_idx, name]
            case AllBlocksCleared():
                self.blocks.clear()

    def store(self, event):
        group, parent = event.group_idx, event.parent_block_hash
        assert event.medium == "GPU"
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        assert (event.kv_cache_spec_kind == "sliding_window") == (event.kv_cache_spec_sliding_window is not None)
        for i, name in enumerate(event.block_hashes):
            extra = event.extra_keys[i] if event.extra_keys else None
            before = self.blocks.get((group, parent))
            salt = extra[0] if extra else before and before[2]
            tokens = event.token_ids[i * event.block_size : (i + 1) * event.block_size]
            assert (group, name) not in self.blocks
            self.blocks[group, name] = (parent, tuple(tokens), salt)
            parent = name

    def hits(self, token_ids, block_size, salt=None):
        """How many tokens of a prompt an engine with one group will find; it always computes the last one."""
        by_content = {content: name for (_, name), content in self.blocks.items()}
        parent, found = None, 0
        while found + block_size < len(token_ids):
            parent = by_content.get((parent, tuple(token_ids[found : found + block_size]), salt))
            if parent is None:
                break
            found += block_size
        return found


class Router:
    """Subscribes to all topics of one address. Batches that came before it did, or that it missed, it asks for."""

    def __init__(self, endpoint, replay_endpoint):
        self.context = zmq.Context()
        self.subscriber = self.context.socket(zmq.SUB)
        self.subscriber.connect(endpoint)
        self.subscriber.subscribe(b"")
        # A REQ socket would take one answer for each request; a replay has many.
        self.replays = self.context.socket(zmq.DEALER)
        self.replays.connect(replay_endpoint)
        self.next = 0
        # By topic.
        self.caches = defaultdict(Cache)
        # Batches that came without being asked for.
        self.num_live = 0
        self.replay_from_start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.destroy(linger=0)

    def replay_from_start(self):
        for message in self.replay(0):
            self.take(*message)

    def until(self, holds):
        """Reads until something holds."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < deadline
            if self.subscriber.poll(100):
                self.read()

    def read(self):
        topic, number, payload = self.subscriber.recv_multipart()
        number = int.from_bytes(number, "big")
        self.num_live += 1
        if number > self.next:
            for message in self.replay(self.next):
                self.take(*message)
        if number == self.next:
            self.take(topic, number, payload)

    def replay(self, start):
        """The batches from this number on that are kept."""
        self.replays.send_multipart((b"", start.to_bytes(8, "big")))
        batches = []
        while True:
            assert self.replays.poll(1000 * WAIT_SECONDS)
            _, topic, number, payload = self.replays.recv_multipart()
            number = int.from_bytes(number, "big", signed=True)
            if number == -1:
                assert (topic, payload) == (b"", b"")
                return batches
            batches.append((topic, number, payload))

    def take(self, topic, number, payload):
        assert number == self.next
        self.next += 1
        batch = DECODER.decode(payload)
        # Names and order of the fields, and what is left out, are those of the types.
        assert msgspec.json.encode(batch) == msgspec.json.encode(msgspec.msgpack.decode(payload))
        assert abs(batch.ts - time.time()) < 600
        assert batch.data_parallel_rank == 0
        for event in batch.events:
            self.caches[topic.decode()].take(event)
