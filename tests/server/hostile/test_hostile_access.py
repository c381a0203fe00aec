"""Who may ask for what: keys, the operator, origins, names, and prefixes of paths."""

from contextlib import asynccontextmanager

import httpx
import pytest
from rocmforge.server import ServerConfig, create_app
from starlette.applications import Starlette
from starlette.routing import Mount

KEYS = ("one", "two")
ASK = {"prompt": "ab", "max_tokens": 2}
ORIGIN = "https://a.example"


@pytest.fixture
def asking(engine):
    """Makes a client of an application of the engine; the engine outlives it."""

    @asynccontextmanager
    async def made(*, prefix="", host="localhost", **settings):
        app = create_app(engine, ServerConfig(**settings))
        if prefix:
            app = Starlette(routes=[Mount(prefix, app)])
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            yield client

    return made


def key(name):
    return {"authorization": f"Bearer {name}"}


async def test_a_preflight_needs_no_key(asking):
    """H5: a browser asks without a key whether it may send one, and reads errors as well."""
    preflight = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    async with asking(api_key=KEYS, cors_origin=(ORIGIN,)) as client:
        asked = await client.options("/v1/completions", headers=preflight)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        assert "authorization" in asked.headers["access-control-allow-headers"]
        for headers, status in (({}, 401), (key("one"), 400)):
            refused = await client.post("/v1/completions", json={}, headers={"origin": ORIGIN} | headers)
            assert refused.status_code == status
            assert refused.headers["access-control-allow-origin"] == ORIGIN
        assert (await client.options("/v1/completions")).status_code == 401
        other = await client.options("/v1/completions", headers=preflight | {"origin": "https://b.example"})
        assert "access-control-allow-origin" not in other.headers


async def test_a_bearer_counts_before_the_other_header(asking):
    """The key in `Authorization` counts, even if it is wrong and `x-api-key` has another."""
    async with asking(api_key=KEYS) as client:
        for bearer, other, status in (("wrong", "one", 401), ("one", "wrong", 200)):
            answer = await client.get("/v1/models", headers=key(bearer) | {"x-api-key": other})
            assert answer.status_code == status


async def test_a_record_is_its_key_s_alone(asking):
    """H6: another key, and the operator's, get what they get for a request that never was."""
    async with asking(api_key=KEYS, admin_key=("top",)) as client:
        answer = (await client.post("/v1/completions", json=ASK, headers=key("one"))).json()
        path = f"/v1/engine/requests/{answer['id']}"
        own = await client.get(path, headers=key("one"))
        assert (own.status_code, own.json()["num_generated_tokens"]) == (200, 2)
        missing = await client.get("/v1/engine/requests/none", headers=key("two"))
        for other in ("two", "top"):
            refused = await client.get(path, headers=key(other))
            assert refused.status_code == missing.status_code == 404
            assert refused.text.replace(answer["id"], "none") == missing.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST.", 200),
        ("app.localhost", 200),
        ("127.0.0.1:8000", 200),
        ("192.168.1.5", 200),
        ("[::1]:8000", 200),
        ("box.lan:8000", 200),
        ("bound.example", 200),
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1@evil.example", 421),
        ("", 421),
    ],
)
async def test_names_by_which_a_server_without_keys_is_asked(asking, host, status):
    """H9: a page whose own name leads to the server's address gets nothing."""
    async with asking(host="x", allowed_host=("box.lan", "bound.example")) as client:
        answer = await client.get("/v1/models", headers={"host": host})
        assert answer.status_code == status
        if status == 421:
            assert "--allowed-host" in answer.json()["error"]["message"]
            assert (await client.get("/", headers={"host": host})).status_code == 421
        assert (await client.get("/live", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://box.lan:8000", 200),
        ("https://allowed.example", 200),
        ("app://obsidian.md", 200),
        ("vscode-webview://1a2b", 200),
        ("https://evil.example", 403),
        ("http://box.lan:9000", 403),
        ("null", 403),
        ("http://localhost:3000", 403),
        ("http://box.lan:8000.evil.example", 403),
    ],
)
async def test_pages_that_a_server_without_keys_answers(asking, origin, status):
    """H9: a page of another site can do nothing, and no form of it either."""
    settings = {"allowed_host": ("box.lan",), "cors_origin": ("https://allowed.example",)}
    headers = {"host": "box.lan:8000"} | ({} if origin is None else {"origin": origin})
    async with asking(**settings) as client:
        answer = await client.post("/v1/completions", json=ASK, headers=headers)
        assert answer.status_code == status, answer.text
        if status == 403:
            assert "--cors-origin" in answer.json()["error"]["message"]


async def test_pages_on_this_machine_are_answered(asking):
    """H9: whoever runs a server on this machine could ask without a page."""
    headers = {"host": "127.0.0.1:8000", "origin": "http://localhost:3000"}
    async with asking() as client:
        assert (await client.post("/v1/completions", json=ASK, headers=headers)).status_code == 200


async def test_every_name_can_be_allowed_and_keys_need_none(asking):
    """H9: a proxy in front has any name; with keys the name does not matter."""
    headers = {"host": "evil.example", "origin": "https://evil.example:1"}
    async with asking(allowed_host=("*",), cors_origin=("*",)) as client:
        assert (await client.get("/v1/models", headers=headers)).status_code == 200
    async with asking(api_key=KEYS) as client:
        assert (await client.get("/v1/models", headers=headers | key("one"))).status_code == 200


@pytest.mark.parametrize(
    ("settings", "sent", "given", "status"),
    [
        ({"api_key": KEYS}, "one", 0, 200),
        ({"api_key": KEYS}, "one", 7, 200),
        ({"api_key": KEYS}, "one", -1, 400),
        ({"api_key": KEYS, "min_priority": -5}, "one", -5, 200),
        ({"api_key": KEYS, "min_priority": -5}, "one", -6, 400),
        ({"api_key": KEYS, "admin_key": ("top",)}, "top", -(2**31), 200),
        ({}, None, -(2**31), 200),
        ({"min_priority": 0}, None, -1, 400),
    ],
)
async def test_priority_is_within_the_operator_s_bounds(asking, settings, sent, given, status):
    """H15: a key cannot put itself before the others."""
    async with asking(**settings) as client:
        headers = {} if sent is None else key(sent)
        answer = await client.post("/v1/completions", json=ASK | {"priority": given}, headers=headers)
        assert answer.status_code == status, answer.text
        if status == 400:
            assert answer.json()["error"]["param"] == "priority"


GLOBAL = ("/metrics", "/v1/engine/stats", "/v1/engine/memory", "/v1/engine/blocks")


async def test_what_concerns_all_clients_is_the_operator_s(asking):
    """H17: a client's key unloads no model and reads no statistics; without keys everybody may."""
    unload = {"model": "Q4_0"}
    async with asking(api_key=KEYS, admin_key=("top",), served_model_name=("Q4_0",)) as client:
        for path in GLOBAL:
            assert (await client.get(path, headers=key("one"))).status_code == 403, path
            assert (await client.get(path, headers=key("top"))).status_code == 200, path
        refused = await client.post("/models/unload", json=unload, headers=key("one"))
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "operator_only"
        # This model stays loaded, whoever asks.
        assert (await client.post("/models/unload", json=unload, headers=key("top"))).status_code == 400
        ollama = {"model": "Q4_0", "keep_alive": 0}
        assert (await client.post("/api/generate", json=ollama, headers=key("one"))).status_code == 403
        assert (await client.post("/api/generate", json=ollama, headers=key("top"))).status_code == 400
        for path in ("/v1/models", "/health", "/v1/engine/requests"):
            assert (await client.get(path, headers=key("one"))).status_code == 200, path
    async with asking() as client:
        for path in GLOBAL:
            assert (await client.get(path)).status_code == 200, path


async def test_what_can_be_got_has_a_head(asking):
    """C11: HEAD answers as GET does, without the body."""
    async with asking(api_key=KEYS) as client:
        for path in ("/", "/live", "/v1/models", "/health", "/openapi.json"):
            got = await client.get(path, headers=key("one"))
            head = await client.head(path, headers=key("one"))
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-length"] == got.headers["content-length"]
        assert (await client.head("/v1/completions", headers=key("one"))).status_code == 405
        assert (await client.head("/v1/models")).status_code == 401


async def test_mounted_under_a_prefix_all_is_as_without(asking):
    """C15: open paths, forms of errors and names of requests do not depend on where the application is mounted."""
    async with asking(prefix="/llm", api_key=KEYS) as client:
        assert (await client.get("/llm/live")).status_code == 200
        assert (await client.get("/llm/")).status_code == 200
        assert (await client.get("/llm/v1/models")).status_code == 401
        message = {"model": "none", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
        refused = await client.post("/llm/v1/messages", json=message, headers=key("one"))
        assert (refused.status_code, refused.json()["type"]) == (404, "error")
        assert refused.headers["request-id"] == refused.headers["x-request-id"]
        unknown = await client.post("/llm/api/chat", json={"model": "none"}, headers=key("one"))
        assert isinstance(unknown.json()["error"], str)
        assert (await client.get("/llm/nothing", headers=key("one"))).json()["error"]["message"].startswith("/nothing:")
