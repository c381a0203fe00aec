"""Models that are not loaded, or cannot be: clients learn if they chat, and no path of the server."""

import shutil

import httpx
import pytest
from marked_models import model_of
from rocmforge import AsyncLLM, ModelFileError
from rocmforge.server import ModelSpec, ServerConfig, create_app
from rocmforge.server.errors import from_engine
from rocmforge.server.models import model as server_model
from rocmforge.server.models.catalog import from_folder
from tiny_models import rewritten

ADMIN = {"authorization": "Bearer top"}
CLIENT = {"authorization": "Bearer one"}
ASK = {"prompt": "ab", "max_tokens": 1}
MESSAGES = [{"role": "user", "content": "Hi"}]


def asking(models, **settings):
    app = create_app(models, ServerConfig(**settings))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A base model, one that chats, one that embeds, and a file that is none."""
    shutil.copy(tiny_model("quant_models/Q4_0"), tmp_path / "base.gguf")
    model_of("hermes", tmp_path, tiny_model).rename(tmp_path / "chat.gguf")
    shutil.copy(tiny_model("embedding/bert"), tmp_path / "embeds.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"secret words")
    return tmp_path


async def chats(client):
    listed = (await client.get("/v1/models")).json()["data"]
    for model in listed:
        assert model["status"]["value"] == "unloaded"
        assert (await client.get(f"/v1/models/{model['id']}")).json() == model
    return {model["id"]: model["chats"] for model in listed}


async def test_who_chats_is_known_before_a_load(folder, monkeypatch):
    """The metadata of each file is read once, and again if it has changed."""
    read = []
    inspect = server_model.inspect_gguf
    monkeypatch.setattr(server_model, "inspect_gguf", lambda file: read.append(file.stem) or inspect(file))
    (folder / "own.jinja").write_text("{{ messages[0].content }}")
    own = ModelSpec(path=folder / "base.gguf", names=("own",), chat_template=folder / "own.jinja")
    away = ModelSpec(path=folder / "away.gguf", names=("away",))
    async with asking([*from_folder(folder, {}), own, away]) as client:
        known = {"base": False, "broken": None, "chat": True, "embeds": False, "own": True, "away": None}
        assert await chats(client) == known
        assert await chats(client) == known
        assert sorted(read) == ["base", "base", "broken", "chat", "embeds"]
        shutil.copy(folder / "chat.gguf", folder / "base.gguf")
        assert await chats(client) == known | {"base": True}


async def test_another_name_of_a_model_says_which_it_is(engine):
    """Metrics have the first name."""
    async with asking(engine, served_model_name=("first", "alias")) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(model["id"], model["parent"]) for model in listed] == [("first", None), ("alias", "first")]


async def test_codex_finds_its_own_list(engine):
    """It requests the list with its version, and keeps its own description of a model that it does not find there."""
    async with asking(engine) as client:
        for_all = (await client.get("/v1/models")).json()
        assert set(for_all) == {"object", "data"}
        assert (await client.get("/v1/models?client_version=0.153.4")).json() == for_all | {"models": []}


async def test_a_model_without_a_template_says_that_it_cannot_chat(engine, tiny_model):
    """Each API answers in words for who asks a server, not for who calls the library."""
    bodies = {
        "/v1/chat/completions": {"messages": MESSAGES},
        "/v1/responses": {"input": "Hi"},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 1, "model": "it"},
        "/v1/messages/count_tokens": {"messages": MESSAGES, "model": "it"},
        "/api/chat": {"messages": MESSAGES, "model": "it"},
        "/tokenize": {"messages": MESSAGES},
        "/apply_template": {"messages": MESSAGES},
    }
    with AsyncLLM(tiny_model("embedding/bert"), num_threads=1) as bert:
        for model, said in (
            (engine, "model: 'it' has no chat template and cannot chat; send a text to /v1/completions"),
            (bert, "model: 'it' is an embedding model and cannot chat; use /v1/embeddings"),
        ):
            async with asking(model, served_model_name=("it",)) as client:
                for path, body in bodies.items():
                    refused = await client.post(path, json=body)
                    assert refused.status_code == 400, path
                    assert said in refused.text, path
                    assert "chat_template" not in refused.text, path
                error = (await client.post("/v1/chat/completions", json={"messages": MESSAGES})).json()["error"]
                assert (error["param"], error["code"]) == ("model", "cannot_chat")


async def test_a_path_of_the_server_is_its_operator_s(engine):
    """H22: clients see a file's name; an admin key sees where it is."""
    path = engine.model
    for headers, settings, shown in (
        ({}, {}, path.name),
        (CLIENT, {"api_key": ("one",), "admin_key": ("top",)}, path.name),
        (ADMIN, {"api_key": ("one",), "admin_key": ("top",)}, str(path)),
    ):
        async with asking(engine, served_model_name=("it",), **settings) as client:
            client.headers.update(headers)
            listed = (await client.get("/v1/models")).json()["data"]
            assert [model["root"] for model in listed] == [shown]
            assert (await client.get("/v1/models/it")).json()["root"] == shown
            assert (await client.get("/props")).json()["model_path"] == shown


async def test_a_failed_load_tells_no_path(folder, monkeypatch):
    """H22: neither the folder of a file, nor what is in it, nor what else is in a hub's store."""
    store = folder / "store"
    other = store / "manifests" / "registry.ollama.ai" / "library" / "private" / "latest"
    other.parent.mkdir(parents=True)
    other.touch()
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    places = {"broken": folder / "broken.gguf", "away": folder / "away.gguf", "hub": "ollama:none"}
    specs = [ModelSpec(path=path, names=(name,)) for name, path in places.items()]
    async with asking(specs) as client:
        for name, file in (("broken", "broken.gguf"), ("away", "away.gguf"), ("hub", "ollama:none")):
            refused = await client.post("/v1/completions", json=ASK | {"model": name})
            said = f"{file}: it is missing, or not what this server can run; its log says why"
            assert refused.json()["error"]["message"] == f"model: {name!r} cannot be loaded: {said}"
            status = (await client.get(f"/v1/models/{name}")).json()["status"]
            assert status == {"value": "unloaded", "failed": True, "error": said}
            if name != "hub":
                shown = await client.post("/api/show", json={"model": name})
                assert (shown.status_code, shown.json()) == (500, {"error": f"model: {said}"})


async def test_a_broken_template_is_told_without_its_file(tiny_model, tmp_path):
    """H22: the rest of the model works, and the log has the place of the fault."""
    template = {"tokenizer.chat_template": "{% if %}"}
    path = rewritten(tiny_model("quant_models/Q4_0"), tmp_path / "bad.gguf", extra=template)
    with AsyncLLM(path, num_threads=1, max_model_len=64) as engine:
        async with asking(engine) as client:
            refused = await client.post("/v1/chat/completions", json={"messages": MESSAGES})
            error = refused.json()["error"]
            assert (refused.status_code, error["param"], error["code"]) == (500, "model", "cannot_chat")
            assert error["message"].startswith("model: 'bad' has an invalid chat template; start the server with ")
            assert (await client.post("/v1/completions", json=ASK)).status_code == 200


def test_an_error_of_a_file_stays_in_the_log(caplog):
    """H22: whichever request runs into it."""
    error = from_engine(ModelFileError("/secret/a.gguf: tensor x: it starts with secr"), 1)
    assert (error.status_code, error.detail) == (500, "model: its file is at fault; the server's log says why")
    assert "/secret/a.gguf" in caplog.text
