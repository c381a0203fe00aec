"""The log tells of each request and of the throughput."""

import asyncio
import re

import httpx
import pytest
from rocmforge import AsyncLLM
from rocmforge.server import create_app, service

SECONDS = 0.05
TOKENS = 400


async def test_requests_and_throughput_are_told(long_model, monkeypatch, caplog):
    """A line for each request, by its name; while the engine works one on its pace, whose sum is all there was."""
    monkeypatch.setattr(service, "REPORT_SECONDS", SECONDS)
    caplog.set_level("INFO", "rocmforge")
    app = create_app(AsyncLLM(long_model, num_threads=1, device="cpu"))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        body = {"prompt": [1, 2, 3], "max_tokens": TOKENS, "ignore_eos": True}
        answer = (await client.post("/v1/completions", json=body)).json()
        # Several readings in which nothing happens, of which nothing is said.
        await asyncio.sleep(5 * SECONDS)
    line = rf"{answer['id']}: length, 3 prompt tokens \(0 cached\), {TOKENS} generated, [\d.]+ s, client anonymous"
    assert re.search(line, caplog.text)
    paces = re.findall(r"([\d.]+) prompt tokens/s, ([\d.]+) generated tokens/s, \d running, \d waiting", caplog.text)
    assert all(float(prompt) or float(generated) for prompt, generated in paces)
    for told, wanted in zip(zip(*paces, strict=True), (3, TOKENS), strict=True):
        assert sum(map(float, told)) * SECONDS == pytest.approx(wanted, abs=0.5)
