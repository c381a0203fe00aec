"""docs/scale-out.md and the runtime of KServe name what a real server has."""

import re

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rust_source import ROOT
from server_process import serving

DOCUMENT = (ROOT / "docs" / "scale-out.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runtime():
    return yaml.safe_load((ROOT / "examples" / "kserve" / "serving-runtime.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def container(runtime):
    (container,) = runtime["spec"]["containers"]
    return container


def flags(container):
    assert container["command"][:2] == ["rocmforge", "serve"]
    return dict(argument.split("=", 1) for argument in container["command"][2:])


@pytest.fixture(scope="module")
def server(container, model, tmp_path_factory):
    """A server with the runtime's own flags, but on the loopback."""
    given = flags(container) | {"--host": "127.0.0.1", "--port": "0", "--num-threads": "1"}
    arguments = [f"{flag}={value}" for flag, value in given.items()]
    with serving(tmp_path_factory.mktemp("log"), model, *arguments) as server:
        yield server


def test_the_runtime_names_ports_and_probes_that_exist(runtime, container, server):
    assert runtime["kind"] == "ServingRuntime"
    given = flags(container)
    ports = {port["containerPort"] for port in container["ports"]}
    assert ports == {int(given["--port"])}
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == given["--port"]
    for probe, path in {"startupProbe": "/health", "readinessProbe": "/health", "livenessProbe": "/live"}.items():
        get = container[probe]["httpGet"]
        assert get == {"path": path, "port": int(given["--port"])}
        assert server.client.get(get["path"]).status_code == 200
    assert server.client.get("/v1/models").json()["data"][0]["id"] == given["--served-model-name"]


def test_the_metrics_that_the_document_names_exist(server):
    families = text_string_to_metric_families(server.client.get("/metrics").text)
    exposed = {name for family in families for name in (family.name, *(sample.name for sample in family.samples))}
    named = set(re.findall(r"`(vllm:\w+)`", DOCUMENT))
    assert len(named) >= 8
    assert named - exposed == set()
    (labels,) = [
        sample.labels
        for family in text_string_to_metric_families(server.client.get("/metrics").text)
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    ]
    assert {"block_size", "num_gpu_blocks"} <= labels.keys()
