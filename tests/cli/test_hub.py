"""Models by name: a stand-in for the hub on loopback, the program as users run it, and Ollama's store."""

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import hub_server
from rocmforge import ModelFileError, OutOfMemoryError
from rocmforge.hub.choice import RemoteFile, encoder, fitting, named, preferred, variants
from rocmforge.hub.ollama import find
from server_process import serving

import gguf

GIB = 1 << 30


@pytest.fixture(scope="module")
def models(tiny_model):
    return {name: tiny_model(f"quant_models/{name}").read_bytes() for name in ("Q4_0", "Q4_K_M", "Q6_K")}


@pytest.fixture(scope="module")
def hub(models):
    tiny = {f"tiny-{name}.gguf": content for name, content in models.items()}
    with hub_server(
        tiny=tiny | {"README.md": b"tiny", "mmproj-tiny-F16.gguf": b"GGUF"},
        corrupt=tiny,
        prose={"README.md": b"nothing else"},
    ) as hub:
        yield hub


@pytest.fixture(autouse=True)
def fresh(hub):
    hub.requests.clear()
    hub.tokens.clear()


@pytest.fixture
def python(hub, tmp_path):
    """Runs Python with caches of its own."""

    def run(*arguments, **variables):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        environment = {
            "HF_HOME": str(tmp_path / "hf"),
            "HF_ENDPOINT": hub.url,
            "OLLAMA_MODELS": str(tmp_path / "ollama"),
        }
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=inherited | environment | variables, timeout=100
        )

    return run


@pytest.fixture
def rocmforge(python):
    """Runs the program so."""
    return functools.partial(python, "-m", "rocmforge")


def digest(file):
    return hashlib.sha256(file).hexdigest()


def pulled(done):
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()).read_bytes()


def refused(done, *words):
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_a_model_is_pulled_then_served_from_the_cache_without_the_network(python, rocmforge, hub, models):
    done = rocmforge("pull", "hf:owner/tiny", HF_TOKEN="hf_secret")
    assert pulled(done) == models["Q4_K_M"]
    assert "hf:owner/tiny: Q4_K_M" in done.stderr
    assert "free memory of the" in done.stderr
    assert "there are Q4_0, Q4_K_M, Q6_K" in done.stderr
    assert "Bearer hf_secret" in hub.tokens

    asked = len(hub.requests)
    for offline in ("0", "1"):
        generated = rocmforge(
            "generate",
            "a",
            "-n",
            2,
            "--temperature",
            0,
            "-m",
            "hf:owner/tiny",
            "--device",
            "cpu",
            HF_HUB_OFFLINE=offline,
        )
        assert generated.returncode == 0, generated.stderr
        assert "from the cache" in generated.stderr
    script = "import sys; from rocmforge import LLM; print(LLM(sys.argv[1], device='cpu', max_model_len=64).model)"
    loaded = python("-c", script, "hf:owner/tiny:q4_k_m")
    assert loaded.stdout.strip() == done.stdout.strip(), loaded.stderr
    assert len(hub.requests) == asked

    # A type that the cache lacks is downloaded, also for a command that only looks at it.
    inspected = rocmforge("inspect", "hf:owner/tiny:Q6_K", "--json")
    assert inspected.returncode == 0, inspected.stderr
    assert json.loads(inspected.stdout)["metadata"]["general.architecture"]
    # The model, its image encoder, and the other type.
    assert hub.ranges() == [None, None, None]
    assert Path(done.stdout.strip()).with_name("mmproj-tiny-F16.gguf").read_bytes() == b"GGUF"
    assert "image encoder: " in done.stderr


def test_a_download_whose_connection_is_cut_goes_on_there(rocmforge, hub, smollm2_path):
    """The library keeps pieces of 10 MiB."""
    hub.repos["owner/real"] = {"SmolLM2.Q4_1.gguf": smollm2_path.read_bytes()}
    hub.cut_after = 45_000_000
    assert pulled(rocmforge("pull", "hf:owner/real")) == smollm2_path.read_bytes()
    assert hub.ranges() == [None, f"bytes={4 * 10 * 2**20}-"]


def test_a_wrong_checksum_is_refused_and_nothing_of_it_stays(rocmforge, hub, models, tmp_path):
    hub.corrupt = True
    refused(rocmforge("pull", "hf:owner/corrupt:Q4_0"), "SHA-256", digest(models["Q4_0"]), "pull it again")
    assert not list((tmp_path / "hf").rglob("*.gguf"))
    hub.corrupt = False
    assert pulled(rocmforge("pull", "hf:owner/corrupt:Q4_0")) == models["Q4_0"]


def test_every_part_of_a_split_model_is_pulled(rocmforge, hub, tiny_model, tmp_path):
    first, second = split(tiny_model("quant_models/Q4_0"), tmp_path)
    hub.repos["owner/split"] = {
        "Q4_0/tiny-Q4_0-00001-of-00002.gguf": first,
        "Q4_0/tiny-Q4_0-00002-of-00002.gguf": second,
        # The second part of this one is missing.
        "tiny-Q8_0-00001-of-00002.gguf": first,
    }
    done = rocmforge("pull", "hf:owner/split")
    assert pulled(done) == first
    assert "2 files" in done.stderr
    generated = rocmforge("generate", "a", "-n", 2, "-m", "hf:owner/split:Q4_0", "--device", "cpu", HF_HUB_OFFLINE="1")
    assert generated.returncode == 0, generated.stderr


def test_what_is_not_there_is_said(rocmforge, hub, tmp_path):
    hub.gated.add("owner/gated")
    refused(rocmforge("pull", "hf:owner/nothing"), "no such repository", "HF_TOKEN")
    refused(rocmforge("pull", "hf:owner/gated"), "accept its terms")
    refused(rocmforge("pull", "hf:owner/prose"), "without a GGUF file")
    refused(rocmforge("pull", "hf:owner/tiny:Q8_0"), "got Q8_0", "Q4_0, Q4_K_M, Q6_K")
    refused(rocmforge("pull", "tiny"), "hf:OWNER/REPO")
    refused(rocmforge("generate", "a", "-m", "hf:tiny"), "got hf:tiny, expected hf:OWNER/REPO")
    refused(rocmforge("generate", "a", "-m", "hf:owner/tiny", HF_HUB_OFFLINE="1"), "not in the cache", "HF_HUB_OFFLINE")
    refused(rocmforge("pull", "hf:owner/tiny", HF_ENDPOINT="http://127.0.0.1:9"), "127.0.0.1:9 cannot be reached")
    hidden = tmp_path / "hidden" / "huggingface_hub"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(name='huggingface_hub')")
    path = os.pathsep.join([str(hidden.parent), os.environ.get("PYTHONPATH", "")])
    refused(rocmforge("pull", "hf:owner/tiny", PYTHONPATH=path), "pip install 'rocmforge[hub]'")


def test_a_full_disk_is_said_before_the_download(python, hub):
    script = (
        "import shutil, types\n"
        "shutil.disk_usage = lambda _: types.SimpleNamespace(free=1000)\n"
        "import sys; sys.argv = ['rocmforge', 'pull', 'hf:owner/tiny:Q4_0']\n"
        "from rocmforge.cli import main; main()\n"
    )
    refused(python("-c", script), "free disk space", "HF_HOME")
    assert hub.ranges() == []


def test_a_model_of_ollamas_store_is_found(rocmforge, models, tmp_path):
    store = tmp_path / "ollama"
    blob = store / "blobs" / f"sha256-{digest(models['Q4_0'])}"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(models["Q4_0"])
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest(models['Q4_0'])}", "size": 1},
        {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'0' * 64}", "size": 1},
    ]
    for place, tag in (("library/tiny", "latest"), ("me/tiny", "q4")):
        manifest = store / "manifests" / "registry.ollama.ai" / place / tag
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    for name in ("ollama:tiny", "ollama:tiny:latest", "ollama:me/tiny:q4"):
        done = rocmforge("inspect", name, "--json")
        assert done.returncode == 0, done.stderr
        assert str(blob) in done.stderr
    # The blob's name says nothing, so the server takes Ollama's.
    with serving(tmp_path, "ollama:me/tiny:q4", "--device", "cpu", OLLAMA_MODELS=str(store)) as server:
        assert [one["id"] for one in server.client.get("/v1/models").json()["data"]] == ["me/tiny:q4"]
    refused(rocmforge("inspect", "ollama:other"), "tiny:latest")
    refused(rocmforge("inspect", "ollama:../../etc"), "expected ollama:NAME[:TAG]")
    blob.unlink()
    refused(rocmforge("inspect", "ollama:tiny"), "ollama pull it again")


def sized(**gigabytes):
    return variants(RemoteFile(f"m-{quant}.gguf", int(size * GIB), None) for quant, size in gigabytes.items())


def test_the_quant_is_the_first_choice_that_fits():
    """By the rule of docs/usage.md: a tenth more than the weights and a GiB have to be free."""
    candidates = preferred(sized(Q8_0=8, Q4_K_M=4.5, Q3_K_M=3.5, Q2_K=2.5, Q6_K=6))
    assert [one.quant for one in candidates] == ["Q4_K_M", "Q6_K", "Q8_0", "Q3_K_M", "Q2_K"]
    for free, quant in ((100, "Q4_K_M"), (5.96, "Q4_K_M"), (5.94, "Q3_K_M"), (4, "Q2_K")):
        assert fitting(candidates, int(free * GIB), "free memory").quant == quant
    with pytest.raises(OutOfMemoryError, match=r"Q2_K \(2.68 GB\), none of which fits .* 3.22 GB"):
        fitting(candidates, 3 * GIB, "free memory")


def test_names_of_files_tell_their_types():
    files = (
        "Qwen3-8B-UD-Q4_K_XL",
        "gpt-oss-20b-mxfp4",
        "a.IQ4_XS",
        "b-bf16",
        "plain",
        "c_q5_k_m",
        "mmproj-F16",
        "d-NVFP4",
    )
    found = variants(RemoteFile(f"x/{name}.gguf", 1, None) for name in files)
    assert {one.quant for one in found} == {"UD-Q4_K_XL", "MXFP4", "IQ4_XS", "BF16", "Q5_K_M", "NVFP4", None}
    assert [one.name for one in named(found, "plain.gguf")] == ["plain"]
    assert [one.name for one in named(found, "plain-00001-of-00002.gguf")] == ["plain"]
    assert [one.name for one in named(found, "ud-q4_k_xl")] == ["Qwen3-8B-UD-Q4_K_XL"]


def test_an_image_encoder_of_each_repository():
    """F16 comes first, then BF16 and F32; an encoder is no model."""

    def chosen(*names):
        found = encoder([RemoteFile(name, 1, None) for name in names])
        return found and found.path

    every = ["a/mmproj-F32.gguf", "mmproj-model-q8_0.gguf", "x.mmproj-bf16.gguf", "MMPROJ-a-f16.gguf", "a-Q4_0.gguf"]
    assert chosen(*every) == "MMPROJ-a-f16.gguf"
    assert chosen(*every[:3]) == "x.mmproj-bf16.gguf"
    assert chosen(*every[:2]) == "a/mmproj-F32.gguf"
    assert chosen(every[1]) == every[1]
    assert chosen("a-Q4_0.gguf", "mmproj.txt") is None
    assert [one.name for one in variants(RemoteFile(name, 1, None) for name in every)] == ["a-Q4_0"]


def split(file, folder):
    """A model in two files, by the keys that llama.cpp gives them."""
    reader = gguf.GGUFReader(file)
    half = len(reader.tensors) // 2
    parts = []
    for number, tensors in enumerate((reader.tensors[:half], reader.tensors[half:])):
        path = folder / f"part-{number}"
        writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
        for key, field in reader.fields.items():
            if number == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                kind = field.types[0]
                writer.add_key_value(
                    key, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
                )
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        parts.append(path.read_bytes())
    return parts


def test_a_manifest_that_nests_too_deeply_is_a_model_file_error(tmp_path, monkeypatch):
    """H13: not a RecursionError."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "m" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("[" * 100_000)
    with pytest.raises(ModelFileError, match="expected a manifest"):
        find("ollama:m", print)
