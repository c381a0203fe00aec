"""`rocmforge bench`: its rows and their forms."""

import csv
import io
import json

import pytest
from conftest import ON_GPU
from rocmforge import LLM, InvalidRequestError, __version__
from rocmforge.cli.app import app
from rocmforge.cli.bench.command import decode_speed
from typer.testing import CliRunner

import gguf

BENCH = ["bench", "-p", "16,32", "-n", "8", "-b", "1,3", "-t", "1", "-r", "1"]
ROWS = ["pp16", "pp32", "tg", "tg3"]


@pytest.fixture(scope="module")
def model(tiny_model):
    return str(tiny_model("quant_models/Q4_0"))


def run(*arguments):
    return CliRunner().invoke(app, arguments)


def test_bench_json_has_the_keys_of_llamacpp_bench(model):
    report = json.loads(run(*BENCH, "-m", model, "--json").stdout)
    results = report["results"]
    assert list(results) == ROWS
    assert all(0 < speeds["min"] <= speeds["median"] <= speeds["max"] for speeds in results.values())
    tensors = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(model).tensors)
    assert f"{tensors / 1e6:.1f} MB" in report["model"]
    assert __version__ in report["machine"]
    if not ON_GPU:
        embedding = next(t for t in gguf.GGUFReader(model).tensors if t.name == "token_embd.weight")
        read = tensors - int(embedding.n_bytes)
        share = results["tg"]["median"] * read / report["bandwidth"]
        assert report["bandwidth_share"] == pytest.approx(share)


@pytest.mark.parametrize("form", ["table", "md", "csv", "json"])
def test_bench_formats(model, form):
    done = run(*BENCH, "-m", model, "--format", form)
    assert done.exit_code == 0, done.output
    if form == "csv":
        assert [row[0] for row in csv.reader(io.StringIO(done.stdout))] == ["test", *ROWS]
    if form in ("md", "table"):
        assert "machine: " in done.output
        assert "model: " in done.output
    for row in ROWS:
        assert row in done.stdout


def test_bench_decodes_behind_longer_contexts(model):
    depths = ["bench", "-p", "", "-n", "4", "-b", "1,2", "-d", "32,100", "-t", "1", "-r", "1", "-m", model, "--json"]
    assert list(json.loads(run(*depths).stdout)["results"]) == ["tg", "tg2", "tg @ d100", "tg2 @ d100"]
    done = run("bench", "-d", "", "-m", model)
    assert done.exit_code == 2
    assert "no context to decode behind" in done.stderr


def test_contexts_that_the_cache_does_not_keep_are_no_speed(model, assert_nothing_left):
    # Four contexts take 52 blocks of 16 KiB.
    with LLM(model, max_num_seqs=4, max_model_len=256, num_threads=1, kv_cache_memory=20 << 14) as llm:
        with pytest.raises(
            InvalidRequestError, match=r"no room for 4 contexts of 200 tokens: [1-4] were computed again"
        ):
            decode_speed(llm, 4, 4, 200)
        assert_nothing_left(llm)
