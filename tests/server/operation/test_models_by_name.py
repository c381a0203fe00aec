"""Models that a file of settings names: downloaded when they are first asked for, before a stand-in for the hub."""

import concurrent.futures
import hashlib
import json
import subprocess
import sys

import ollama
import pytest
from hub_server import hub_server
from rocmforge import LLM, SamplingParams
from server_process import WAIT_SECONDS, serving, wait_until

PROMPT = "The sky is"


@pytest.fixture(scope="module")
def content(tiny_model):
    return tiny_model("quant_models/Q4_0").read_bytes()


@pytest.fixture
def start(content, smollm2_path, tmp_path):
    """Runs a hub, and a server with caches of its own."""
    with hub_server(tiny={"tiny-Q4_0.gguf": content}, large={"SmolLM2.Q4_1.gguf": smollm2_path.read_bytes()}) as hub:
        store = tmp_path / "ollama"
        blob = store / "blobs" / f"sha256-{hashlib.sha256(content).hexdigest()}"
        manifest = store / "manifests" / "registry.ollama.ai" / "library" / "stored" / "latest"
        for path in (blob, manifest):
            path.parent.mkdir(parents=True)
        blob.write_bytes(content)
        layer = {"mediaType": "application/vnd.ollama.image.model", "digest": blob.name.replace("-", ":"), "size": 1}
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
        file = tmp_path / "models.toml"
        file.write_text(
            """
num_threads = 1
max_model_len = 64

[models.tiny]
path = "hf:owner/tiny:Q4_0"

[models.large]
path = "hf:owner/large"

[models.none]
path = "hf:owner/none"

[models.stored]
path = "ollama:stored"

[models.gone]
path = "ollama:gone"
"""
        )
        caches = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.url, "OLLAMA_MODELS": str(store)}
        yield hub, lambda: serving(tmp_path, "--config", file, **caches)


@pytest.fixture(scope="module")
def expected(tiny_model):
    with LLM(tiny_model("quant_models/Q4_0"), max_model_len=64, num_threads=1) as llm:
        (output,) = llm.generate([PROMPT], SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
        return output.outputs[0].text


def ask(server, model):
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return server.client.post("/v1/completions", json=body)


def text(answer):
    answer.raise_for_status()
    return answer.json()["choices"][0]["text"]


def status(server, model):
    return server.client.get(f"/v1/models/{model}").json()["status"]


def test_a_model_is_downloaded_when_it_is_first_asked_for(start, content, expected):
    hub, serve = start
    with serve() as server:
        assert set(server.states().values()) == {"unloaded"}
        assert server.client.get("/v1/models/tiny").json()["root"] == "hf:owner/tiny:Q4_0"
        with ollama.Client(server.url) as client:
            sizes = {model.model: model.size for model in client.list().models}
            stored = sizes.pop("stored:latest")
            assert sizes == dict.fromkeys(("tiny:latest", "large:latest", "none:latest", "gone:latest"), 0)
            with pytest.raises(ollama.ResponseError, match="'tiny' is not on this machine"):
                client.show("tiny")
            assert hub.requests == []
            assert text(ask(server, "tiny")) == text(ask(server, "stored")) == expected
            assert len(hub.ranges()) == 1
            assert {model.model: model.size for model in client.list().models}["tiny:latest"] == stored > 0
            assert client.show("tiny").details.family == "llama"
        server.client.post("/models/unload", json={"model": "tiny"}).raise_for_status()
        assert text(ask(server, "tiny")) == expected
        assert len(hub.ranges()) == 1
    # A file in the cache is known from the start.
    with serve() as server, ollama.Client(server.url) as client:
        assert client.show("tiny").details.family == "llama"


def test_a_download_is_shown_and_ends_with_its_load(start, expected, tmp_path):
    """Others are loaded meanwhile, and nothing of it stays."""
    hub, serve = start
    hub.pause_after = 45_000_000
    with serve() as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server, "large")
        wait_until(lambda: status(server, "large").get("done_bytes", 0) > 20_000_000)
        told = status(server, "large")
        assert (told["value"], told["stage"]) == ("loading", "download")
        assert told["done_bytes"] < told["total_bytes"] == len(hub.repos["owner/large"]["SmolLM2.Q4_1.gguf"])
        assert text(ask(server, "tiny")) == expected
        server.client.post("/models/unload", json={"model": "large"}).raise_for_status()
        assert asked.result(WAIT_SECONDS).status_code == 503
        assert server.states()["large"] == "unloaded"
        hub.released.set()
        wait_until(lambda: not list((tmp_path / "hf").rglob("*.incomplete")))
        assert not list((tmp_path / "hf").rglob("SmolLM2*"))
        with server.client.stream("POST", "/models/load", json={"model": "large", "stream": True}) as response:
            told = [json.loads(line[6:])["status"] for line in response.iter_lines() if line.startswith("data: ")]
        assert told[-1]["value"] == "loaded"
        assert text(ask(server, "large"))


def test_a_model_that_cannot_be_had_is_an_error_of_its_requests(start, expected):
    hub, serve = start
    with serve() as server:
        for model, message in (
            ("none", "the hub has no such repository"),
            ("gone", "ollama:gone: it is missing"),
        ):
            refused = ask(server, model)
            assert refused.status_code == 500
            assert message in refused.json()["error"]["message"]
            assert status(server, model)["failed"]
        hub.gated.add("owner/large")
        assert "accept its terms" in ask(server, "large").json()["error"]["message"]
        assert text(ask(server, "tiny")) == expected


@pytest.mark.deep
def test_a_hub_that_cannot_be_reached_may_be_later(start, expected, tmp_path):
    hub, _ = start
    file = tmp_path / "models.toml"
    with serving(tmp_path, "--config", file, HF_HOME=str(tmp_path / "hf"), HF_ENDPOINT="http://127.0.0.1:9") as server:
        refused = ask(server, "tiny")
        assert (refused.status_code, "127.0.0.1:9 cannot be reached" in refused.text) == (503, True)
        assert int(refused.headers["retry-after"]) > 0
    assert hub.requests == []


def test_a_name_that_is_none_is_refused_at_the_start(tmp_path):
    file = tmp_path / "models.toml"
    file.write_text('[models.tiny]\npath = "hf:tiny"\n')
    command = [sys.executable, "-m", "rocmforge", "serve", "--port", "0", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_SECONDS)
    assert done.returncode == 1
    assert "got hf:tiny, expected hf:OWNER/REPO" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.deep
def test_a_pull_tells_its_progress(start, expected):
    """C23: Ollama's clients pull a model by the name of the hub, and see how far the download is."""
    hub, serve = start
    with serve() as server, ollama.Client(server.url) as client:
        told = list(client.pull("hf.co/owner/large", stream=True))
        assert (told[0].status, told[-1].status) == ("pulling manifest", "success")
        assert all(one.completed <= one.total for one in told if one.total)
        assert server.states()["large"] == "loaded"
        assert client.pull("hf.co/owner/tiny:Q4_0").status == "success"
        assert text(ask(server, "tiny")) == expected
        downloads = len(hub.ranges())
        assert client.pull("tiny").status == "success"
        assert len(hub.ranges()) == downloads
        with pytest.raises(ollama.ResponseError, match="cannot be loaded"):
            list(client.pull("none", stream=True))
