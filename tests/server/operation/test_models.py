"""Several models behind one port: loaded when they are asked for, unloaded when others need the room or nobody asks."""

import concurrent.futures
import contextlib
import json
import re
import shutil
import socket
import threading
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import httpx
import ollama
import openai
import pytest
from rocmforge import LLM, AsyncLLM, InvalidRequestError, SamplingParams
from rocmforge.server import ModelSpec, ServerConfig, create_app
from rocmforge.server.models.catalog import from_folder, from_tables
from server_process import WAIT_SECONDS, serving, wait_until

PROMPT = "The sky is"
ENGINE = ("--num-threads", 1, "--max-model-len", 256)


@pytest.fixture(scope="module")
def folder(tiny_model, long_model, smollm2_path, tmp_path_factory):
    """Two small models, one with room for long answers, one that takes a while to load, and a broken one."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "more").mkdir()
    shutil.copy(tiny_model("quant_models/Q4_0"), folder / "a.gguf")
    shutil.copy(tiny_model("quant_models/Q6_K"), folder / "more" / "b.gguf")
    shutil.copy(long_model, folder / "long.gguf")
    (folder / "slow.gguf").symlink_to(smollm2_path)
    (folder / "broken.gguf").write_bytes((folder / "a.gguf").read_bytes()[:4000])
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """Gives what each model goes on with, by engines in this process."""
    texts = {}
    for name in ("a", "more/b"):
        with LLM(folder / f"{name}.gguf", max_model_len=256, num_threads=1) as llm:
            (output,) = llm.generate([PROMPT], SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
            texts[name] = output.outputs[0].text
    assert len(set(texts.values())) == 2
    return texts


@pytest.fixture
def start(folder, tmp_path):
    """Runs a server of the folder."""
    return lambda *arguments, **options: serving(tmp_path, folder, *ENGINE, *arguments, **options)


def ask(server, model, **more):
    """A completion, by OpenAI's client."""
    body = {"max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}} | more
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=WAIT_SECONDS) as client:
        return client.completions.create(model=model, prompt=PROMPT, **body).choices[0].text


def metric(server, name, **labels):
    """The sum of the samples of a metric that have these labels."""
    lines = re.findall(rf"^{name}{{(.*)}} (\S+)$", server.client.get("/metrics").text, re.MULTILINE)
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    return sum(float(value) for found, value in lines if wanted <= set(found.split(",")))


def resident(server):
    """Bytes of memory that the process has."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024


def open_files(server):
    """The number of files and connections that the process has open."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_models_are_loaded_when_they_are_asked_for(start, expected):
    with start() as server:
        assert server.states() == dict.fromkeys(("a", "broken", "long", "more/b", "slow"), "unloaded")
        assert server.client.get("/health").json() == {"status": "sleeping"}
        assert ask(server, "a") == expected["a"]
        assert ask(server, "more/b") == expected["more/b"]
        states = server.states()
        assert [name for name, state in states.items() if state == "loaded"] == ["a", "more/b"]
        assert server.client.get("/health").json() == {"status": "ok"}
        # Each API finds the model that is named; without a name there is no telling which is meant.
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
            ("/v1/responses", {"input": "Hi"}),
            ("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "ignore_eos": True}),
            ("/generate", {"prompt": "Hi", "max_tokens": 1}),
            ("/tokenize", {"prompt": "Hi"}),
        ):
            assert server.client.post(path, json=body | {"model": "none"}).status_code == 404, path
            missing = server.client.post(path, json=body)
            assert missing.status_code == 400, path
            assert "model: it is missing" in missing.text
            others = server.client.post(path, json=body | {"models": ["none", "no"]})
            found = server.client.post(path, json=body | {"model": "none", "models": ["no", "a"]})
            if path.startswith("/v1/"):
                assert (others.status_code, others.json()["error"]["param"]) == (404, "models"), path
                assert found.status_code != 404, path
            else:
                assert (others.status_code, found.status_code) == (400, 400), path
        for name, names in (("none", ["no", "more/b", "a"]), ("a", ["more/b"])):
            served = "more/b" if name == "none" else name
            body = {"model": name, "models": names, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
            made = server.client.post("/v1/completions", json=body | {"ignore_eos": True}).json()
            assert (made["model"], made["choices"][0]["text"]) == (served, expected[served])
        assert server.client.get("/v1/engine/stats", params={"model": "a"}).json()["num_finished"]["length"] > 0
        for name in ("long", "a"):
            status = server.client.get("/v1/engine/memory", params={"model": name}).status_code
            assert status == (200 if name == "a" else 409)
        for name in ("a", "more/b"):
            assert metric(server, "vllm:generation_tokens_total", model_name=name) == 16 + (name == "a")
            assert metric(server, "rocmforge:model_state", model_name=name, state="loaded") == 1
        assert metric(server, "rocmforge:model_state", model_name="long", state="unloaded") == 1


def test_first_requests_load_once(start, expected):
    with start() as server, concurrent.futures.ThreadPoolExecutor(24) as pool:
        names = ["a", "more/b"] * 12
        assert list(pool.map(lambda name: ask(server, name), names)) == [expected[name] for name in names]
        for name in ("a", "more/b"):
            assert metric(server, "rocmforge:model_load_seconds_count", model_name=name) == 1


def test_least_recently_used_makes_room(start, expected):
    """Requests to more models than fit are all answered, and what was loaded gives its memory back."""
    with start("--max-models", 2) as server:
        for name in ("a", "long", "a", "more/b"):
            ask(server, name)
        assert [name for name, state in server.states().items() if state == "loaded"] == ["a", "more/b"]
        assert metric(server, "rocmforge:memory_bytes", model_name="long") == 0
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            names = ["a", "more/b", "long"] * 8
            answers = list(pool.map(lambda name: ask(server, name), names))
        assert [text for name, text in zip(names, answers, strict=True) if name != "long"] == [
            expected[name] for name in names if name != "long"
        ]
        wait_until(lambda: list(server.states().values()).count("loaded") == 2)
        before = None
        for _ in range(5):
            for name in ("a", "more/b", "long"):
                ask(server, name)
            before = before or (resident(server), open_files(server))
        # 12 more loads of 12 MB each would be 144 MB.
        assert resident(server) < before[0] + (24 << 20)
        assert open_files(server) <= before[1] + 4
        for name in list(server.states()):
            server.client.post("/models/unload", json={"model": name}).raise_for_status()
        assert set(server.states().values()) == {"unloaded"}
        assert metric(server, "rocmforge:memory_bytes") == 0
        assert "models loaded: 0, 0 bytes" in server.log().splitlines()[-1]


def test_bytes_are_limited(start, expected):
    with start() as server:
        ask(server, "a")
        size = server.client.get("/v1/engine/memory", params={"model": "a"}).json()["total"]
    with start("--max-model-memory", int(1.9 * size)) as server:
        for name in ("a", "more/b", "a"):
            assert ask(server, name) == expected[name]
            assert [loaded for loaded, state in server.states().items() if state == "loaded"] == [name]
    with start("--max-model-memory", size - 1) as server:
        for _ in range(2):
            refused = server.client.post("/v1/completions", json={"model": "a", "prompt": "Hi"})
            assert refused.status_code == 503
            message = refused.json()["error"]["message"]
            assert f"it takes {size} bytes" in message
            assert f"more than the {size - 1} that models may take (max_model_memory)" in message
        assert metric(server, "rocmforge:memory_bytes") == 0


def test_requests_are_not_cut(folder, tmp_path, expected):
    """A model that is in use is unloaded when its requests have ended; later ones load it again."""
    with serving(tmp_path, folder, "--num-threads", 1, "--max-models", 1) as server:
        for unload in (lambda: ask(server, "a"), lambda: server.client.post("/models/unload", json={"model": "long"})):
            body = {"model": "long", "prompt": "ab", "max_tokens": 2000, "ignore_eos": True, "stream": True}
            with server.client.stream("POST", "/v1/completions", json=body) as response:
                texts = response.iter_text()
                next(texts)
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    other = pool.submit(unload)
                    again = pool.submit(ask, server, "long")
                    # Lines end with "\n" alone: a random text may have other characters that split lines.
                    lines = "".join(texts).split("\n")
                    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
                    assert events[-1]["choices"][0]["finish_reason"] == "length"
                    other.result(WAIT_SECONDS)
                    again.result(WAIT_SECONDS)
        assert ask(server, "a") == expected["a"]


def test_wait_for_room_is_bounded(folder, tmp_path):
    limits = ("--max-models", 1, "--load-timeout", 0.2, "--max-load-queue", 1)
    with serving(tmp_path, folder, "--num-threads", 1, *limits) as server:
        body = {"model": "long", "prompt": "ab", "max_tokens": 50_000, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            with pytest.raises(openai.InternalServerError, match="'long', whose memory is needed, was in use"):
                ask(server, "a")
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(ask, server, "a") for _ in range(4)]
            errors = [one.exception() for one in asked]
            assert {type(error) for error in errors} == {openai.InternalServerError, openai.RateLimitError}
            full = next(error for error in errors if isinstance(error, openai.RateLimitError))
            assert int(full.response.headers["retry-after"]) > 0
            # The model in use has not been harmed.
            assert server.states()["long"] == "loaded"
        server.settled("long")


def test_client_that_leaves_stops_no_load(start):
    """The others get their answers, and the model is loaded even if all have left."""
    with start() as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        address = (server.client.base_url.host, server.client.base_url.port)
        body = json.dumps({"model": "slow", "prompt": PROMPT}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        for stays in (True, False):
            with socket.create_connection(address) as leaving:
                leaving.sendall(request)
                wait_until(lambda: server.states()["slow"] != "unloaded")
                asked = pool.submit(ask, server, "slow") if stays else None
            if asked is not None:
                assert asked.result(WAIT_SECONDS)
            wait_until(lambda: server.states()["slow"] == "loaded")
            server.settled("slow")
            server.client.post("/models/unload", json={"model": "slow"}).raise_for_status()


def test_file_that_cannot_be_loaded(folder, tmp_path, expected):
    """It is an error of the requests for it alone, does not cost another model its place, and may be repaired."""
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    with serving(tmp_path, own, *ENGINE, "--max-models", 1) as server:
        assert ask(server, "a") == expected["a"]
        with pytest.raises(openai.InternalServerError, match=r"'broken' cannot be loaded: .*broken\.gguf"):
            ask(server, "broken")
        status = server.client.get("/v1/models/broken").json()["status"]
        assert (status["value"], status["failed"]) == ("unloaded", True)
        assert "broken.gguf" in status["error"]
        assert metric(server, "rocmforge:model_load_failures_total", model_name="broken") == 1
        assert server.states()["a"] == "loaded"
        assert server.client.get("/health").json() == {"status": "ok"}
        with ollama.Client(server.url) as client:
            assert "broken:latest" not in [model.model for model in client.list().models]
        shutil.copy(own / "a.gguf", own / "broken.gguf")
        assert ask(server, "broken") == expected["a"]


def test_tables(folder, tmp_path, expected):
    """Names, aliases and settings of their own stand in the file of settings."""
    (tmp_path / "template.jinja").write_text("{{ messages[0].content }}!")
    (tmp_path / "draft.gguf").symlink_to(folder / "more" / "b.gguf")
    file = tmp_path / "models.toml"
    file.write_text(
        f'''
num_threads = 1
max_models = 1
max_model_len = 128

[models.first]
path = "{folder}/a.gguf"
aliases = ["gpt-4o", "default"]
chat_template = "template.jinja"

[models.second]
path = "{folder}/more/b.gguf"
max_model_len = 64
speculative_config = {{ model = "draft.gguf" }}
'''
    )
    with serving(tmp_path, "--config", file) as server:
        assert list(server.states()) == ["first", "gpt-4o", "default", "second"]
        assert ask(server, "gpt-4o") == ask(server, "first") == expected["a"]
        assert server.client.get("/v1/models/default").json()["max_model_len"] == 128
        rendered = server.client.post(
            "/apply_template", json={"model": "default", "messages": [{"role": "user", "content": "Hi"}]}
        )
        assert rendered.json() == {"prompt": "Hi!"}
        assert ask(server, "second") == expected["more/b"]
        assert server.client.get("/v1/models/second").json()["max_model_len"] == 64
        assert server.states() == {"first": "unloaded", "gpt-4o": "unloaded", "default": "unloaded", "second": "loaded"}


def test_ollama_keeps_models_as_long_as_asked(start):
    with start() as server, ollama.Client(server.url) as client:
        long_ago = datetime.now(UTC)
        assert client.generate("a", "").done_reason == "load"
        (loaded,) = client.ps().models
        assert (loaded.model, loaded.expires_at.year) == ("a:latest", 9999)
        client.generate("a", "Hi", keep_alive="1h30m", options={"num_predict": 1})
        (loaded,) = client.ps().models
        assert 5300 < (loaded.expires_at - long_ago).total_seconds() < 5500 + WAIT_SECONDS
        first = client.generate("more/b", "Hi", options={"num_predict": 1}, keep_alive=-1)
        assert first.load_duration > 0
        assert [model.model for model in client.ps().models] == ["a:latest", "more/b:latest"]
        # Without a prompt it is unloaded before the answer, with one after it.
        assert client.generate("a", "", keep_alive=0).done_reason == "unload"
        assert [model.model for model in client.ps().models] == ["more/b:latest"]
        client.generate("more/b", "Hi", options={"num_predict": 1}, keep_alive="0s")
        wait_until(lambda: not client.ps().models)
        assert server.states()["more/b"] == "sleeping"
        assert len(client.list().models) == 4
        assert client.show("more/b").details.family == "llama"
        client.generate("a", "Hi", options={"num_predict": 1}, keep_alive=0.3)
        wait_until(lambda: not client.ps().models)
        assert {server.states()[name] for name in ("a", "more/b")} == {"sleeping"}


def test_progress_of_a_load(start):
    with start() as server:
        for stream in ("first", "again"):
            with server.client.stream("POST", "/models/load", json={"model": "slow", "stream": True}) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                events = [json.loads(line[6:])["status"] for line in response.iter_lines() if line.startswith("data: ")]
            assert events[-1]["value"] == "loaded"
            loading = [status for status in events if status["value"] == "loading"]
            assert bool(loading) == (stream == "first")
            done = [status["done_bytes"] for status in loading]
            assert done == sorted(done)
            # Weights are read from the file and written to the engine.
            assert {status["total_bytes"] > 90_000_000 for status in loading if status["total_bytes"]} <= {True}
        assert (
            events[-1]["memory_bytes"]
            == server.client.get("/v1/engine/memory", params={"model": "slow"}).json()["total"]
        )
        with server.client.stream("POST", "/models/load", json={"model": "broken", "stream": True}) as response:
            last = [line for line in response.iter_lines() if line][-1]
        assert "cannot be loaded" in json.loads(last[6:])["error"]["message"]
        assert server.client.post("/models/load", json={"model": "a"}).json()["status"]["value"] == "loaded"
        assert server.client.post("/models/load", json={"model": "none"}).status_code == 404


def test_unload_ends_a_load(start):
    with start() as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.client.post, "/v1/completions", json={"model": "slow", "prompt": "Hi"})
        wait_until(lambda: server.states()["slow"] == "loading")
        server.client.post("/models/unload", json={"model": "slow"}).raise_for_status()
        assert server.states()["slow"] == "unloaded"
        assert asked.result(WAIT_SECONDS).status_code in (200, 503)


def test_server_ends_while_it_loads(start):
    with start() as server:
        with contextlib.suppress(httpx.TransportError), concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(server.client.post, "/v1/completions", json={"model": "slow", "prompt": "Hi"})
            wait_until(lambda: server.states()["slow"] != "unloaded")
            server.process.terminate()
            assert asked.result(WAIT_SECONDS).status_code in (200, 503)
        assert server.process.wait(WAIT_SECONDS) == 0, server.log()
        assert "Traceback" not in server.log()


@pytest.mark.parametrize("many", [True, False])
def test_idle_models_sleep_and_wake(folder, tmp_path, expected, many):
    """Requests come while the model falls asleep, over and over: each is answered as ever."""
    place = folder if many else folder / "a.gguf"
    with serving(tmp_path, place, *ENGINE, "--sleep-idle-seconds", 0.05) as server:
        if many:
            ask(server, "a")
        awake = threading.Event()
        wait_until(lambda: server.states()["a"] == "sleeping")
        assert server.client.get("/health").json() == {"status": "sleeping"}
        assert metric(server, "rocmforge:memory_bytes") == 0
        assert metric(server, "rocmforge:model_state", model_name="a", state="sleeping") == 1

        def client(number):
            for turn in range(6):
                assert ask(server, "a") == expected["a"]
                # Pauses around the time after which it sleeps.
                awake.wait(0.03 + 0.008 * ((turn + number) % 5))

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(client, number) for number in range(3)]:
                done.result()
        assert metric(server, "rocmforge:model_load_seconds_count", model_name="a") > 1
        assert metric(server, "vllm:request_success_total", finished_reason="length") == 18 + many
        wait_until(lambda: server.states()["a"] == "sleeping")
        assert "Traceback" not in server.log()


def test_engine_of_ones_own_stays_loaded(model, assert_nothing_left):
    with AsyncLLM(model, max_model_len=64, num_threads=1) as engine:
        with pytest.raises(InvalidRequestError, match="sleep_idle_seconds"):
            create_app(engine, ServerConfig(sleep_idle_seconds=1))
        twins = [ModelSpec(path=model, names=("one",)), ModelSpec(path=model.parent / "other.gguf", names=("one",))]
        with pytest.raises(InvalidRequestError, match="the name 'one'"):
            create_app(twins)
        with pytest.raises(InvalidRequestError, match="models: got none"):
            create_app([])
        assert_nothing_left(engine)


def test_image_encoders_are_no_models(tmp_path):
    """A folder's encoders go with its models; a table names one by a path beside its file, or none."""
    for name in ("a.gguf", "mmproj-a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf", "b.mmproj-f16.gguf"):
        (tmp_path / name).touch()
    assert [spec.names for spec in from_folder(tmp_path, {})] == [("a",), ("b",)]
    tables = {name: {"path": "a.gguf", "mmproj": name} for name in ("none", "sub/mmproj-a.gguf", "/x.gguf")}
    given = [spec.settings["mmproj"] for spec in from_tables(tables, tmp_path, {})]
    assert given == ["none", str(tmp_path / "sub" / "mmproj-a.gguf"), "/x.gguf"]


def test_what_cannot_be_served_is_said(folder, tmp_path):
    with pytest.raises(InvalidRequestError, match=r"found no \.gguf file in the folder"):
        from_folder(tmp_path, {})
    with pytest.raises(InvalidRequestError, match="got them for several models"):
        create_app(from_folder(folder, {}), ServerConfig(served_model_name=("x",)))
    with pytest.raises(InvalidRequestError, match="max_models: got 0, expected at least 1"):
        ServerConfig(max_models=0)
    good = f'path = "{folder}/a.gguf"'
    for text, message in (
        ("[models]", "expected one [models.NAME]"),
        ("models.x = 3", "models.x: got 3, expected a table with a path"),
        ("[models.x]", "models.x.path: it is missing"),
        (f"[models.x]\n{good}\ncontext = 3", "models.x.context: it is not known"),
        (f'[models.x]\n{good}\nmax_model_len = "9"', "models.x.max_model_len: got '9', expected int"),
        (f"[models.x]\n{good}\nspeculative_config = 1", "models.x.speculative_config: got 1, expected dict"),
        (f"[models.x]\n{good}\nmax_num_seqs = true", "models.x.max_num_seqs: got True, expected int"),
        (f'[models.x]\n{good}\naliases = "y"', "models.x.aliases: got 'y', expected list"),
        (f"[models.x]\n{good}\naliases = [1]", "models.x.aliases: got 1, expected str"),
        (f'[models.x]\n{good}\naliases = ["y"]\n[models.y]\n{good}', "got the name 'y'"),
    ):
        with pytest.raises(InvalidRequestError, match=re.escape(message)):
            create_app(from_tables(tomllib.loads(text)["models"], tmp_path, {}))
    file = tmp_path / "models.toml"
    file.write_text(f"[models.x]\n{good}\n")
    with pytest.raises(AssertionError, match="give one of them"), serving(tmp_path, folder, "--config", file):
        pass
