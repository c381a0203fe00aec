"""`rocmforge list`, `run`, and the values that a shell completes."""

import json

import pytest
from rocmforge.cli.app import app
from rocmforge.cli.common import VALUES, completer
from rocmforge.hub import demo, listing, ollama
from rocmforge.hub.listing import LocalModel
from rocmforge.server.run import greeting
from typer.main import get_command
from typer.testing import CliRunner

COMMANDS = get_command(app).commands


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with the demo model, a model in the hub's cache and one in Ollama's store."""
    monkeypatch.setenv("ROCMFORGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    huggingface = pytest.importorskip("rocmforge.hub.huggingface")
    monkeypatch.setattr(huggingface.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_models_of_all_stores_are_listed(machine, monkeypatch):
    done = run("list")
    assert (done.exit_code, done.stdout) == (0, "name\tsize\tfits\tfile\n")
    assert "rocmforge pull demo" in done.stderr
    put(demo.path(), bytes(2_000_000))
    repo = machine / "hub" / "models--owner--some-model"
    put(repo / "refs" / "main", b"abc")
    put(repo / "snapshots" / "abc" / "some-Q4_K_M.gguf", bytes(1_500))
    digest = "sha256:" + "0" * 64
    layers = {"layers": [{"digest": digest, "mediaType": ollama.MODEL_LAYER}]}
    put(machine / "ollama/manifests/registry.ollama.ai/library/small/1b", json.dumps(layers).encode())
    put(machine / "ollama/blobs" / digest.replace(":", "-"), bytes(10))
    # This one has no weights yet.
    put(machine / "ollama/manifests/registry.ollama.ai/library/cut/latest", b"{}")
    done = run("list")
    assert done.exit_code == 0, done.stderr + repr(done.exception)
    rows = [line.split("\t") for line in done.stdout.splitlines()[1:]]
    assert [row[:2] for row in rows] == [
        ["demo", "2.0 MB"],
        ["hf:owner/some-model:Q4_K_M", "1.50 kB"],
        ["ollama:small:1b", "10 bytes"],
    ]
    report = json.loads(run("list", "--json").stdout)
    assert [one["bytes"] for one in report] == [2_000_000, 1_500, 10]
    assert report[0]["path"] == str(demo.path())


def test_a_model_fits_with_its_cache():
    model = LocalModel("a", 1 << 30, demo.path())
    assert model.fits(3 << 30)
    assert not model.fits(2 << 30)
    assert listing.ROOM_BYTES == 1 << 30


def test_run_is_chat():
    assert COMMANDS["run"].callback is not None
    assert [one.name for one in COMMANDS["run"].params] == [one.name for one in COMMANDS["chat"].params]
    done = run("run", "a.gguf", "--model", "b.gguf")
    assert done.exit_code == 2
    assert "MODEL" in done.stderr


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "bench"])
def test_a_shell_completes_devices(command):
    (option,) = (one for one in COMMANDS[command].params if one.name == "device")
    assert [item.value for item in option.shell_complete(None, "c")] == ["cpu", "cuda"]


def test_values_of_other_settings():
    assert completer("kv_cache_dtype")("f") == ["f16", "f32"]
    assert completer("port") is None
    (option,) = (one for one in COMMANDS["serve"].params if one.name == "kv_cache_dtype")
    assert [item.value for item in option.shell_complete(None, "")] == list(VALUES["kv_cache_dtype"])


def test_serve_greets_with_what_one_opens():
    lines = greeting("http://0.0.0.0:8000", ["a", "b"]).splitlines()
    assert len(lines) == 4
    assert lines[0].endswith(" http://127.0.0.1:8000/")
    assert lines[1].endswith(" http://127.0.0.1:8000/v1")
    assert " 2 (" in lines[2]
    assert "Ctrl-C" in lines[3]
