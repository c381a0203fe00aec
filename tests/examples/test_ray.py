"""examples/ray_serve.py and examples/ray_data.py on a real Ray: `make test-ray`."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve
from rocmforge import LLM, SamplingParams

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
import ray_serve  # noqa: E402 - it is no package

WAIT_SECONDS = 60.0
# Ray takes no other address of the loopback.
HOST = "127.0.0.2"


@pytest.fixture(scope="module")
def cluster():
    """A cluster of one machine, in which two replicas, the API and Ray's own actors have a place."""
    path = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {"PYTHONPATH": os.pathsep.join(path), "ROCMFORGE_NUM_THREADS": "1", "ROCMFORGE_DEVICE": "cpu"}
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    context = ray.init(_node_ip_address=HOST, include_dashboard=False, num_cpus=8, runtime_env={"env_vars": variables})
    yield os.environ | variables | {"RAY_ADDRESS": context.address_info["address"]}
    ray.shutdown()


@pytest.fixture(scope="module")
def api(cluster, long_model):
    """A client of two replicas."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(ray_serve.app(ray_serve.Settings(model=str(long_model), min_replicas=2)))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as client:
        yield client
    serve.shutdown()


def events(lines):
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def complete(api, prompt, **settings):
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 8, "ignore_eos": True} | settings
    return events(api.post("/generate", json=body).raise_for_status().iter_lines())


def all_stats(api):
    """The statistics of both replicas, of which each request finds one."""
    deadline, found = time.monotonic() + WAIT_SECONDS, {}
    while len(found) < 2:
        assert time.monotonic() < deadline
        stats = api.get("/stats").raise_for_status().json()
        found[stats["replica"]] = stats
    return list(found.values())


def test_replicas_stream_what_the_engine_gives(api, long_model):
    prompt = "The sky is"
    with LLM(long_model, num_threads=1, device="cpu", progress=False) as llm:
        (expected,) = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    pieces = complete(api, prompt, max_tokens=40)
    assert "".join(piece["text"] for piece in pieces) == expected.outputs[0].text
    assert len(pieces) > 1
    assert [piece["finish_reason"] for piece in pieces][-1] == "length"
    refused = api.post("/generate", json={"prompt": prompt, "temperature": -1})
    assert (refused.status_code, refused.json()["detail"][:12]) == (400, "temperature:")


def test_equal_beginnings_go_to_the_same_replica(api):
    conversations = ["A long text that begins alike, and goes on for a while. " * 6, "0123456789 " * 30]
    replicas = [
        {piece["replica"] for turn in range(4) for piece in complete(api, f"{begin}{turn}")} for begin in conversations
    ]
    assert [len(each) for each in replicas] == [1, 1]
    assert replicas[0] != replicas[1]
    assert sum(stats["prefix_cache_hits"] for stats in all_stats(api)) > 0


def test_a_client_that_leaves_ends_its_request(api):
    body = {"prompt": "ab", "max_tokens": 60_000, "ignore_eos": True}
    before = sum(stats["num_finished"]["abort"] for stats in all_stats(api))
    with api.stream("POST", "/generate", json=body) as response:
        next(response.iter_lines())
    deadline = time.monotonic() + WAIT_SECONDS
    while sum(stats["num_finished"]["abort"] for stats in all_stats(api)) == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [stats["num_running"] + stats["blocks_owned"] for stats in all_stats(api)] == [0, 0]


def test_a_batch_of_prompts(cluster, long_model, tmp_path):
    prompts = [f"Question {number}: what is {number} + 1?" for number in range(40)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    completions = tmp_path / "completions"
    command = [sys.executable, EXAMPLES / "ray_data.py", long_model, tmp_path / "prompts.jsonl", completions]
    subprocess.run([*command, "--engines", "2"], env=cluster, check=True, timeout=300)
    rows = [json.loads(line) for file in completions.iterdir() for line in file.read_text().splitlines()]
    with LLM(long_model, num_threads=1, device="cpu", progress=False) as llm:
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=32))
    expected = {output.prompt: output.outputs[0].text for output in outputs}
    assert {row["prompt"]: row["completion"] for row in rows} == expected
