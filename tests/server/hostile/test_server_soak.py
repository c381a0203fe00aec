"""Mixed traffic: a server that has served it holds no more than before.

`make test` runs it for seconds, `make test-soak` for as long as SOAK_SECONDS says.
"""

import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

import hostile_grammars
import httpx
import pytest
from hostile_clients import BEGINNINGS, bodies
from server_process import OPERATOR, serving

SECONDS = float(os.environ.get("ROCMFORGE_TEST_SOAK_SECONDS", "4"))
NUM_CLIENTS = 24
KEYS = [f"key-{index}" for index in range(4)]
# Memory grows at first: caches fill, threads start, allocators take their arenas. On a busy machine that takes longer
# than a time says, so it is over after so many requests too, and the traffic goes on for as many again.
WARM_SECONDS = min(120.0, SECONDS / 4)
WARM_REQUESTS = 150
# A run of seconds is hardly warm: it finds leaks of bodies, which are megabytes each, and the soak finds the others.
MAX_GROWTH_BYTES = (16 if SECONDS >= 60 else 64) << 20
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"]}
HOSTILE = [bodies(name) for name in ("80,000 items", "4,000 items", "100,000 tools", "2 MB of text")]
GRAMMARS = list(hostile_grammars.ALL.values())
# All clients are one process, which on a busy machine may not get to send what it has begun for seconds.
HEADER_SECONDS = 30
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def grammar_body(fields):
    """A request that walks through a grammar in the same way each time, so that its memory is known after the first."""
    return {"prompt": "a", "max_tokens": 40, "ignore_eos": True, "seed": 1, "structured_outputs": fields}


def resident_bytes(pid):
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def open_files(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Traffic:
    """Clients that each do one thing after the other, at random, until time and requests are over."""

    def __init__(self, url):
        self.url = url
        self.started = time.monotonic()
        self.counts = {}

    def is_after(self, seconds, requests):
        return time.monotonic() - self.started > seconds and sum(self.counts.values()) >= requests

    @property
    def is_over(self):
        return self.is_after(SECONDS, 2 * WARM_REQUESTS)

    async def client(self, seed):
        source = random.Random(seed)
        kinds = (
            self.stream,
            self.whole,
            self.chat,
            self.structured,
            self.vanish,
            self.slow,
            self.refused,
            self.native,
            self.hostile_body,
            self.half_request,
            self.grammar,
        )
        # Each kind is there from the beginning.
        kind = kinds[seed % len(kinds)]
        while not self.is_over:
            headers = {"Authorization": f"Bearer {source.choice(KEYS)}"}
            async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60) as client:
                await kind(client, source)
            self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
            kind = source.choice(kinds)

    @staticmethod
    def prompt(source):
        # Some prompts share prefixes, others are long.
        return f"{'The engine is running. ' * source.choice([0, 1, 8, 30])}{source.randrange(1000)}"

    async def stream(self, client, source):
        body = {"prompt": self.prompt(source), "max_tokens": source.randint(1, 60), "stream": True, "ignore_eos": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]", lines[-1]

    async def whole(self, client, source):
        asked = {"prompt": self.prompt(source), "max_tokens": source.randint(1, 40), "n": source.choice([1, 1, 3])}
        answer = await client.post("/v1/completions", json=asked)
        assert answer.status_code == 200, answer.text

    async def chat(self, client, source):
        messages = [{"role": "user", "content": self.prompt(source)}]
        answer = await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 20})
        assert answer.status_code == 200, answer.text

    async def structured(self, client, source):
        asked = {"prompt": self.prompt(source), "max_tokens": 60, "structured_outputs": {"json": SCHEMA}}
        answer = (await client.post("/v1/completions", json=asked)).json()
        (choice,) = answer["choices"]
        assert choice["finish_reason"] != "stop" or 0 <= json.loads(choice["text"])["n"] <= 99

    async def vanish(self, client, source):
        """Leaves at some time, with a stream or without."""
        stream = source.random() < 0.5
        body = {"prompt": self.prompt(source), "max_tokens": 400, "stream": stream, "ignore_eos": True}
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/v1/completions", json=body, timeout=source.uniform(0.001, 0.3))

    async def slow(self, client, source):
        """Reads a little at a time."""
        body = {"prompt": self.prompt(source), "max_tokens": 40, "stream": True, "ignore_eos": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_bytes(200):
                await asyncio.sleep(0.02)

    async def refused(self, client, source):
        body = source.choice([{"prompt": "a", "surprise": 1}, {"prompt": [10**9]}, {"prompt": "a", "model": "other"}])
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code in (400, 404), answer.text

    async def native(self, client, _):
        for path in ("/v1/engine/stats", "/v1/engine/blocks", "/metrics"):
            assert (await client.get(path)).status_code == 403
            assert (await client.get(path, headers={"Authorization": f"Bearer {OPERATOR}"})).status_code == 200
        for path in ("/v1/engine/requests", "/health", "/v1/models"):
            assert (await client.get(path)).status_code == 200

    async def hostile_body(self, client, source):
        """Sends what would take long to read, and leaves before some of the answers."""
        path, content = source.choice(HOSTILE)
        # A body that comes too slowly on a busy machine is cut off.
        with contextlib.suppress(httpx.TransportError):
            answer = await client.post(
                path,
                content=content,
                headers={"content-type": "application/json"},
                timeout=source.choice([0.05, 60]),
            )
            assert answer.status_code in (400, 408, 429), answer.text

    async def grammar(self, client, source):
        """Asks for a form that costs much, or that no text fits, and leaves before some of the answers."""
        body = grammar_body(source.choice(GRAMMARS))
        with contextlib.suppress(httpx.TimeoutException):
            answer = await client.post("/v1/completions", json=body, timeout=source.choice([0.05, 60]))
            assert answer.status_code in (200, 400), answer.text

    async def half_request(self, client, source):
        """Sends half a head, half a body or nothing, and leaves after a while."""
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(source.choice(list(BEGINNINGS.values())))
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            await asyncio.wait_for(reader.read(), source.choice([0.1, 2]))
        writer.close()


@pytest.mark.timeout(SECONDS + 300)
def test_mixed_traffic_leaves_nothing(long_model, tmp_path):
    keys = [argument for key in KEYS for argument in ("--api-key", key)]
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = (*keys, "--chat-template", template, "--max-model-len", 1024, "--max-num-seqs", 16, "--num-threads", 1)
    arguments += ("--header-timeout", HEADER_SECONDS, "--body-timeout", HEADER_SECONDS)
    with serving(tmp_path, long_model, *arguments, headers={"Authorization": f"Bearer {KEYS[0]}"}) as server:
        pid = server.process.pid
        held = []
        for fields in GRAMMARS:
            assert server.client.post("/v1/completions", json=grammar_body(fields)).status_code in (200, 400)

        async def watch():
            while not traffic.is_over:
                await asyncio.sleep(min(1.0, SECONDS / 20))
                if traffic.is_after(WARM_SECONDS, WARM_REQUESTS):
                    held.append(resident_bytes(pid))

        async def run():
            await asyncio.gather(watch(), *(traffic.client(seed) for seed in range(NUM_CLIENTS)))

        traffic = Traffic(server.url)
        asyncio.run(run())
        server.settled()
        files = open_files(pid)
        third = max(1, len(held) // 3)
        # The middle of each: a body under way is no growth.
        first, last = statistics.median(held[:third]), statistics.median(held[-third:])
        report = f"{SECONDS:.0f} s, {sum(traffic.counts.values())} requests {traffic.counts}; resident: "
        report += f"{first / 2**20:.1f} MiB in the first third, {last / 2**20:.1f} MiB in the last one"
        sys.stderr.write(f"{report}\n")
        assert len(traffic.counts) == 11
        assert last - first < MAX_GROWTH_BYTES, held
        # The listening socket, the loop's own, the log, the model; no connection of a client that is gone.
        assert files < 40
