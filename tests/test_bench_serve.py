"""`rocmforge bench --serve`: many streams at once, on a real server and on the engine."""

import json
import math
import subprocess
import sys

import pytest
from rocmforge.cli.load import Times
from server_process import serving

COMMAND = [sys.executable, "-m", "rocmforge", "bench", "--serve"]


def bench(*arguments):
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def server(long_model, tmp_path_factory):
    arguments = ("--served-model-name", "tiny", "--max-model-len", 512, "--num-threads", 2)
    with serving(tmp_path_factory.mktemp("load"), long_model, *arguments) as server:
        yield server


def test_two_hundred_streams_at_once(server):
    """Every stream gets all its tokens, and nothing is left of them."""
    done = bench("--url", server.url, "--num-prompts", 200, "--input-len", 8, "--output-len", 32, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["completed"], report["failed"], report["errors"]) == (200, 0, [])
    assert (report["input_tokens"], report["output_tokens"]) == (200 * 8, 200 * 32)
    assert report["output_tokens_per_second"] == pytest.approx(200 * 32 / report["duration"], rel=0.01)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms"):
        times = report[name]
        # An answer that comes in one piece has no time between pieces.
        assert 0 <= times["median"] <= times["p90"] <= times["p99"]
    assert 0 < report["ttft_ms"]["median"] <= report["e2el_ms"]["median"] <= 1000 * report["duration"]
    server.settled()


def test_the_engine_itself(long_model):
    """Measures that load without a server, as a table, with requests that come over time."""
    done = bench("-m", long_model, "-t", 1, "--num-prompts", 6, "--max-concurrency", 2, "--request-rate", 200,
                 "--input-len", 8, "--output-len", 8)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "6 completed, 0 failed" in done.stdout
    assert [line.split("\t")[0] for line in done.stdout.splitlines()[-4:]] == ["TTFT", "TPOT", "ITL", "E2EL"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--url", "ftp://somewhere"], 2, "expected an address such as"),
        (["--url", "http://127.0.0.1:9", "--num-prompts", "2"], 1, "2 of 2 requests failed"),
        (["--request-rate", "0"], 2, "expected more than 0"),
    ],
)
def test_errors(arguments, code, said):
    done = bench(*arguments)
    assert done.returncode == code
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_refusals_are_told(server):
    """Requests that the server refuses are counted, with its own words."""
    done = bench("--url", server.url, "--served-model-name", "other", "--num-prompts", 3, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["failed"] == 3
    assert "expected one of those that are served: tiny" in report["errors"][0]


def test_url_needs_serve():
    done = subprocess.run([*COMMAND[:-1], "--url", "http://127.0.0.1:1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--url needs --serve" in done.stderr


def test_percentiles():
    """Computed by hand: of 1 to 10 ms the 90th percentile is the ninth value, of 200 values the 99th is the 198th."""
    times = Times.of([value / 1000 for value in range(10, 0, -1)])
    assert (times.mean, times.median, times.p90, times.p99) == (5.5, 5.5, 9.0, 10.0)
    assert Times.of([value / 1000 for value in range(1, 201)]).p99 == 198.0
    assert math.isclose(Times.of([]).p99, 0.0)
