"""Keys, limits, signals, health and metrics of a real server."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_process import serving

SHORT = {"prompt": "ab", "max_tokens": 5, "ignore_eos": True}
LONG = {"prompt": "ab", "max_tokens": 60_000, "ignore_eos": True}


@pytest.fixture
def start(long_model, tmp_path):
    """Runs a server of a tiny model in which requests may last as long as they like."""
    return lambda *arguments, **options: serving(tmp_path, long_model, "--num-threads", 1, *arguments, **options)


@pytest.fixture(scope="module")
def server(long_model, tmp_path_factory):
    arguments = ["--num-threads", 1, "--max-body-bytes", 200_000, "--max-header-bytes", 8192]
    with serving(
        tmp_path_factory.mktemp("log"), long_model, *arguments, "--cors-origin", "https://a.example"
    ) as server:
        yield server


def wait_for(server, gauge, count):
    """Waits until so many sequences run, or wait."""
    deadline = time.monotonic() + 20
    while server.stats()[gauge] < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


MISSES = ("last_block", "new", "evicted", "forgotten", "no_snapshot", "host_memory", "files", "unreadable")


def metrics(server):
    """Every sample by its name and the labels that tell samples of one name apart."""
    found = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine")}
            found[sample.name, *labels.values()] = sample.value
    return found


def test_it_lives_and_is_ready(server):
    assert server.client.get("/live").json() == {"status": "ok"}
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.client.get("/version").json().keys() == {"version"}
    with server.client.stream("POST", "/v1/completions", json=LONG | {"stream": True}) as response:
        next(response.iter_lines())
        assert server.client.get("/health").status_code == 200
    server.settled()


def test_after_three_requests_every_counter_says_three(start):
    with start() as server:
        server.client.get("/health")
        for stream in (False, True, False):
            server.client.post("/v1/completions", json=SHORT | {"stream": stream}).raise_for_status()
        server.settled()
        found = metrics(server)
    for name in (
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_n",
        "request_params_max_tokens",
        "request_time_per_output_token_seconds",
    ):
        assert found[f"vllm:{name}_count",] == 3, name
    assert found["vllm:request_success_total", "length"] == 3
    assert found["vllm:generation_tokens_total",] == found["vllm:request_generation_tokens_sum",] == 15
    assert found["vllm:prompt_tokens_total",] == found["vllm:request_prompt_tokens_sum",] > 0
    assert found["vllm:inter_token_latency_seconds_count",] == 12
    assert found["vllm:num_requests_running",] == found["vllm:num_requests_waiting",] == 0
    assert found["vllm:kv_cache_usage_perc",] == 0
    assert found["rocmforge:memory_bytes", "weights"] > 0
    missed = sum(found["rocmforge:prefix_cache_missed_tokens_total", why] for why in MISSES)
    assert missed == found["vllm:prefix_cache_queries_total",] - found["vllm:prefix_cache_hits_total",] > 0


def test_engine_is_told(server):
    answer = server.client.post("/v1/completions", json=SHORT).json()
    record = server.client.get(f"/v1/engine/requests/{answer['id']}").json()
    assert (record["finish_reason"], record["num_generated_tokens"]) == ("length", 5)
    assert server.client.get("/v1/engine/requests/none").status_code == 404
    blocks, stats = server.client.get("/v1/engine/blocks").json(), server.settled()
    assert len(blocks["state"]) == stats["blocks_total"]
    assert [blocks["states"][state] for state in blocks["state"]].count("cached") == stats["blocks_cached"]
    memory = server.client.get("/v1/engine/memory").json()
    assert memory.pop("total") == sum(memory.values())


def test_tokens(server):
    text = "Hello there"
    answer = server.client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    plain = server.client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert server.client.post("/detokenize", json={"tokens": plain["tokens"]}).json()["prompt"].strip() == text
    assert server.client.post("/tokenize", json={}).status_code == 400
    assert server.client.post("/detokenize", json={"tokens": [-1]}).status_code == 400
    assert server.client.post("/detokenize", json={"tokens": [10**9]}).status_code == 400


def test_request_id_comes_back(server):
    assert server.client.get("/live", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert server.client.get("/live", headers={"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"


def test_errors_have_status_and_shape(server):
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/completions", 400),
        ("GET", "/v1/models/none", 404),
    ):
        response = server.client.request(method, path)
        assert response.status_code == status, path
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    for content in (b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 30_000, b"NaN", b'{"prompt": NaN}'):
        response = server.client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, content[:10]


def answered(server, ask):
    """The status of an answer. One that comes before all is sent may be lost with its connection."""
    for _ in range(20):
        with contextlib.suppress(httpx.TransportError), httpx.Client(base_url=server.url) as client:
            return ask(client).status_code
    return None


def test_large_bodies_and_heads_are_refused(server):
    body = json.dumps({"prompt": "a" * 300_000}).encode()
    # One of a known length, and one whose length shows as it comes.
    for content in (lambda: body, lambda: (body[at : at + 10_000] for at in range(0, len(body), 10_000))):
        kind = {"content-type": "application/json"}
        asked = answered(server, lambda client: client.post("/v1/completions", content=content(), headers=kind))  # noqa: B023
        assert asked == 413
    for length in (10_000, 100_000):
        asked = answered(server, lambda client: client.get("/live", headers={"X-Long": "a" * length}))  # noqa: B023
        assert asked in (400, 431)


def test_pages_of_other_origins(server):
    allowed = server.client.get("/live", headers={"Origin": "https://a.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    assert (
        "access-control-allow-origin" not in server.client.get("/live", headers={"Origin": "https://b.example"}).headers
    )
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    assert server.client.options("/v1/completions", headers=preflight).status_code == 200


def test_keys(start, tmp_path):
    """Every route but /live needs one; the log has none."""
    (tmp_path / "keys").write_text("second-key\n\nthird-key\n")
    with start(
        "--api-key-file", tmp_path / "keys", ROCMFORGE_API_KEY="first-key", headers={"x-api-key": "third-key"}
    ) as server:
        with httpx.Client(base_url=server.url) as client:
            assert client.get("/live").status_code == 200
            schema = server.client.get("/openapi.json").json()
            for path, methods in [
                *schema["paths"].items(),
                ("/openapi.json", ["get"]),
                ("/docs", ["get"]),
                ("/nothing", ["get"]),
            ]:
                for method in methods:
                    if path != "/live":
                        refused = client.request(method, path, headers={"Authorization": "Bearer wrong"})
                        assert refused.status_code == 401, path
                        assert "API key: got no key" in client.request(method, path).text
            for header in (
                {"Authorization": "Bearer first-key"},
                {"authorization": "bearer second-key"},
                {"x-api-key": "third-key"},
            ):
                assert client.post("/v1/completions", json=SHORT, headers=header).status_code == 200
        server.settled()
        assert "-key" not in server.log()


def test_keys_share_no_prefixes(start):
    """Another client's prompt is never found in the cache, one's own is."""
    with start("--api-key", "a", "--api-key", "b", headers={"x-api-key": "a"}) as server:

        def cached(key, **salt):
            body = {"prompt": "ab " * 200, "max_tokens": 1} | salt
            answer = server.client.post("/v1/completions", json=body, headers={"x-api-key": key}).json()
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert cached("a") == 0
        assert cached("a") > 0
        assert cached("b") == 0
        assert cached("b") > 0
        assert cached("a", cache_salt="x") == 0


def test_full_queue_says_when_to_come_back(start):
    with start("--max-num-seqs", 1, "--max-queue-size", 1) as server:
        leave = threading.Event()
        streams = [threading.Thread(target=stream_until, args=(server, leave)) for _ in range(2)]
        # The first has to have left the queue before there is room for the second.
        streams[0].start()
        wait_for(server, "num_running", 1)
        streams[1].start()
        wait_for(server, "num_waiting", 1)
        response = server.client.post("/v1/completions", json=SHORT)
        leave.set()
        assert response.status_code == 429
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert response.json()["error"]["type"] == "rate_limit_error"
        for stream in streams:
            stream.join()
        server.settled()
        assert server.client.post("/v1/completions", json=SHORT).status_code == 200


def stream_until(server, leave):
    """Streams a long answer until it is told to leave, or the server ends it."""
    body = LONG | {"stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        for _ in response.iter_lines():
            if leave.is_set():
                break


def head(body):
    """A request for a completion, byte by byte."""
    text = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{text}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_storm_of_clients_that_vanish(server):
    """Five hundred connections are cut at once, of those that run and of those that wait; nothing is left."""
    host, port = server.client.base_url.host, server.client.base_url.port
    before = await asyncio.to_thread(server.settled)
    request = head(json.dumps(LONG | {"stream": True}).encode())
    writers = []
    try:
        for _ in range(500):
            _, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            writers.append(writer)
        deadline = time.monotonic() + 60
        while (stats := await asyncio.to_thread(server.stats))["num_running"] + stats["num_waiting"] < 500:
            assert time.monotonic() < deadline, stats
            await asyncio.sleep(0.05)
    finally:
        for writer in writers:
            writer.transport.abort()
    after = await asyncio.to_thread(server.settled)
    assert after["num_finished"]["abort"] - before["num_finished"]["abort"] == 500
    assert sum(after["cancel_to_free"]["counts"]) - sum(before["cancel_to_free"]["counts"]) == 500
    assert "Traceback" not in server.log()


async def test_client_that_stops_reading_holds_up_nobody(server):
    """Its tokens are merged into fewer events, none is lost, and others get theirs meanwhile."""
    tokens = 6000
    before = (await asyncio.to_thread(server.settled))["num_finished"]["length"]
    body = LONG | {"max_tokens": tokens, "logprobs": 20, "stream": True}
    with socket.create_connection((server.client.base_url.host, server.client.base_url.port)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        silent.sendall(head(json.dumps(body).encode()))
        deadline = time.monotonic() + 60
        while (await asyncio.to_thread(server.stats))["num_finished"]["length"] == before:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        answer = await asyncio.to_thread(server.client.post, "/v1/completions", json=SHORT)
        assert answer.json()["usage"]["completion_tokens"] == 5
        silent.settimeout(60)
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += silent.recv(1 << 20)
    events = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: {")]
    assert len(events) < tokens
    assert sum(len(event["choices"][0]["logprobs"]["tokens"]) for event in events) == tokens
    await asyncio.to_thread(server.settled)


@pytest.mark.parametrize("signals", [1, 2])
def test_end(start, signals):
    """S4: after the first signal, running requests finish and new ones are refused; the second ends the server."""
    with start("--shutdown-timeout", 60) as server:
        tokens = 3000 if signals == 1 else 60_000
        reasons = []

        def stream():
            body = LONG | {"max_tokens": tokens, "stream": True}
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
                events = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {"))
                reasons.extend(event["choices"][0]["finish_reason"] for event in events)

        thread = threading.Thread(target=stream)
        thread.start()
        wait_for(server, "num_running", 1)
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while (refused := server.client.post("/v1/completions", json=SHORT)).status_code != 503:
            assert time.monotonic() < deadline
        assert int(refused.headers["retry-after"]) > 0
        assert server.client.get("/health").status_code == 503
        assert server.client.get("/live").status_code == 200
        if signals == 2:
            server.process.send_signal(signal.SIGTERM)
        thread.join(60)
        assert reasons[-1] == ("length" if signals == 1 else "abort")
        assert server.process.wait(30) == 0, server.log()


def test_end_without_patience(start):
    """A request that runs longer than it may is aborted."""
    with start("--shutdown-timeout", 0.2) as server:
        thread = threading.Thread(target=stream_until, args=(server, threading.Event()))
        thread.start()
        wait_for(server, "num_running", 1)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0, server.log()
        thread.join(30)
        assert "1 requests are aborted" in server.log()


def test_settings_from_everywhere(start, tmp_path):
    """A flag goes before a variable, and that before the file."""
    (tmp_path / "serve.toml").write_text(
        'served_model_name = ["file"]\nmax_model_len = 128\nmax_n = 2\napi_key = ["from-file"]\n'
    )
    arguments = ["--config", tmp_path / "serve.toml", "--max-n", 3]
    with start(
        *arguments, ROCMFORGE_MAX_MODEL_LEN="256", ROCMFORGE_MAX_N="9", headers={"x-api-key": "from-file"}
    ) as server:
        (model,) = server.client.get("/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("file", 256)
        refused = server.client.post("/v1/completions", json=SHORT | {"n": 4})
        assert "at most 3" in refused.json()["error"]["message"]


@pytest.mark.deep
def test_draft_tokens_are_set_by_a_table_or_a_flag(start, long_model, tmp_path):
    (tmp_path / "serve.toml").write_text('[speculative_config]\nmethod = "ngram"\nprompt_lookup_min = 1\n')
    body = SHORT | {"prompt": [5, 6, 7, 8] * 4, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    with start("--config", tmp_path / "serve.toml") as server:
        text = server.client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        stats = server.client.get("/v1/engine/stats").json()
        metrics = server.client.get("/metrics").text
    assert stats["spec_decode_num_proposed_tokens"] > 0
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert f"vllm:spec_decode_{name}_total{{" in metrics
    with start("--speculative-config", '{"num_speculative_tokens": 2}') as server:
        assert server.client.post("/v1/completions", json=body).json()["choices"][0]["text"] == text
    # The draft model is the model itself: its draft tokens are right.
    (tmp_path / "draft.toml").write_text(f"[speculative_config]\nmodel = {json.dumps(str(long_model))}\n")
    with start("--config", tmp_path / "draft.toml") as server:
        assert server.client.post("/v1/completions", json=body).json()["choices"][0]["text"] == text
        stats = server.client.get("/v1/engine/stats").json()
    assert stats["spec_decode_num_accepted_tokens"] == stats["spec_decode_num_draft_tokens"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--speculative-config", "ngram"], "Invalid value for '--speculative-config'"),
        (["--speculative-config", '{"method": "eagle"}'], "speculative_config.method: got eagle"),
        (["--port", "99999"], "port: got 99999"),
        (["--max-n", "0"], "max_n: got 0"),
        (["--api-key", ""], "api_key: got one that is empty"),
        (["--ssl-certfile", "x.pem"], "ssl_certfile, ssl_keyfile: got one of them"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--api-key-file", "missing"], "missing"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_wrong_settings_end_in_one_line(model, tmp_path, arguments, message):
    command = [sys.executable, "-m", "rocmforge", "serve", str(model), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_key_in_a_file(model, tmp_path):
    (tmp_path / "serve.toml").write_text("prot = 1\n")
    command = [sys.executable, "-m", "rocmforge", "serve", str(model), "--config", str(tmp_path / "serve.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "got prot" in " ".join(done.stderr.replace("│", " ").split())


def test_port_in_use_is_said(model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "rocmforge", "serve", str(model), "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_prompts_are_logged_only_where_asked_for(start):
    for arguments, logged in (([], False), (["--log-prompts"], True)):
        with start(*arguments) as server:
            server.client.post("/v1/completions", json=SHORT | {"prompt": "xyzzy"}).raise_for_status()
            assert ("xyzzy" in server.log()) == logged


@pytest.mark.timeout(700)
@pytest.mark.parametrize(
    ("phases", "examples"),
    [("examples,fuzzing", 1), pytest.param("examples,coverage,fuzzing,stateful", 10, marks=pytest.mark.deep)],
)
def test_no_input_is_an_error_of_the_server(start, tmp_path, phases, examples):
    """Schemathesis makes requests of the description, right ones and wrong ones; none is answered with a 5xx."""
    template = tmp_path / "template.txt"
    template.write_text("{% for message in messages %}{{ message.role }}: {{ message.content }} {% endfor %}")
    program = [sys.executable, "-m", "schemathesis.cli", "run"]
    with start("--max-model-len", 64, "--chat-template", template) as server:
        command = [*program, f"{server.url}/openapi.json", "--checks", "not_a_server_error", "--phases", phases]
        command += ["--max-examples", str(examples)]
        done = subprocess.run(
            [*command, "--seed", "1", "--no-color"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr
        assert "passed" in done.stdout
        assert "Traceback" not in server.log()
