"""The files of `examples/` for operators: every metric, flag, variable and path in them exists."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from rocmforge.cli.app import app
from server_process import serving
from typer.main import get_command

EXAMPLES = Path(__file__).parents[2] / "examples"
ROOT = EXAMPLES.parent
SERVE = get_command(app).commands["serve"]
FLAGS = {flag for parameter in SERVE.params for flag in (*parameter.opts, *parameter.secondary_opts)}
VARIABLES = {parameter.envvar for parameter in SERVE.params}


def flags(text):
    """The flags of `rocmforge serve` in a file."""
    return set(re.findall(r"--[a-z-]+", " ".join(re.findall(r"\bserve\b.*", text))))


def test_every_metric_of_the_dashboard_is_measured(model, tmp_path):
    dashboard = json.loads((EXAMPLES / "grafana" / "rocmforge.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    assert all(panel["targets"] for panel in dashboard["panels"])
    used = {name for text in expressions for name in re.findall(r"(?:vllm|rocmforge):\w+", text)}
    assert len(used) >= 15
    with serving(tmp_path, model, "--device", "cpu") as server:
        server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).raise_for_status()
        families = list(text_string_to_metric_families(server.client.get("/metrics").text))
    samples = {sample.name: sample.labels for family in families for sample in family.samples}
    assert used <= samples.keys()
    for text in expressions:
        # Labels that series are added up by, apart from the buckets' bounds.
        for labels, name in re.findall(r"sum by \(([\w, ]+)\) \((?:rate\()?((?:vllm|rocmforge):\w+)", text):
            assert set(labels.split(", ")) <= samples[name].keys(), text


def test_prometheus_asks_where_the_metrics_are():
    (job,) = yaml.safe_load((EXAMPLES / "grafana" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    port = next(parameter.default for parameter in SERVE.params if parameter.name == "port")
    assert job["static_configs"] == [{"targets": [f"localhost:{port}"]}]


def test_flags_variables_and_settings_exist():
    settings = tomllib.loads((EXAMPLES / "deploy" / "server.toml").read_text())
    assert {f"--{name.replace('_', '-')}" for name in settings} <= FLAGS
    for name in ("rocmforge.service", "Containerfile"):
        text = (EXAMPLES / "deploy" / name).read_text()
        used = flags(text.replace('", "', " "))
        assert used
        assert used <= FLAGS
        assert set(re.findall(r"ROCMFORGE_\w+", text)) <= VARIABLES
        extras = re.search(r"\[((?:\w+,?)+)\]", text.replace("[Unit]", "").replace("[Service]", ""))[1].split(",")
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(extras) <= project["optional-dependencies"].keys()


def test_the_unit_outlives_the_drain():
    unit = (EXAMPLES / "deploy" / "rocmforge.service").read_text()
    drain = tomllib.loads((EXAMPLES / "deploy" / "server.toml").read_text())["shutdown_timeout"]
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > drain


def test_systemd_takes_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    unit = (EXAMPLES / "deploy" / "rocmforge.service").read_text()
    # It looks whether the program exists.
    file = tmp_path / "rocmforge.service"
    file.write_text(unit.replace("/opt/rocmforge/bin/rocmforge", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr


def test_the_container_copies_and_runs_what_there_is():
    text = (EXAMPLES / "deploy" / "Containerfile").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert "COPY dist/rocmforge-*.whl" in text
    assert re.search(r"^wheel:", makefile, re.MULTILINE)
    assert "dist" in makefile
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[1])
    assert entry[:2] == ["/opt/rocmforge/bin/rocmforge", "serve"]
    assert "python3 -m venv /opt/rocmforge" in text
    # Not as root, and with a check of the endpoint that needs no key.
    assert re.search(r"^USER 1000:1000$", text, re.MULTILINE)
    check = json.loads(re.search(r"^HEALTHCHECK .*\n +CMD (.*)$", text, re.MULTILINE)[1])
    assert check[0] == "/opt/rocmforge/bin/python"
    assert "http://127.0.0.1:8000/live" in check[2]
    # The documentation builds it in the same way.
    build = "podman build --file examples/deploy/Containerfile --tag rocmforge ."
    assert build in text
    assert build in (ROOT / "docs" / "server.md").read_text()
