"""`rocmforge bench --serve`: many streams at once, on a real server, on the engine, and on servers of others."""

import csv
import io
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rocmforge.cli.app import app
from server_process import serving
from typer.testing import CliRunner

COMMAND = [sys.executable, "-m", "rocmforge", "bench"]


def bench(*arguments, serve=True):
    command = [*COMMAND, *(["--serve"] if serve else []), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def server(long_model, tmp_path_factory):
    arguments = ("--served-model-name", "tiny", "--max-model-len", 512, "--num-threads", 2)
    with serving(tmp_path_factory.mktemp("load"), long_model, *arguments) as server:
        yield server


@pytest.fixture
def other_server():
    """Gives the address of a server that counts no tokens and ends as llama.cpp's does, and the requests it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, self.headers["Authorization"], body))
            choices = [{"text": "a", "finish_reason": None}] * body["max_tokens"]
            # A text that the next token completes.
            choices[0] = {"text": "", "finish_reason": None}
            self.send_response(200)
            self.end_headers()
            for choice in [*choices, {"text": "", "finish_reason": "length"}]:
                self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()


def test_two_hundred_streams_at_once(server):
    """Every stream gets all its tokens, and nothing is left of them."""
    done = bench("--url", server.url, "--num-prompts", 200, "--input-len", 8, "--output-len", 32, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["server"], report["lengths"]) == (server.url, "8 tokens in, 32 out")
    (row,) = report["rows"]
    assert (row["completed"], row["failed"], row["errors"]) == (200, 0, [])
    assert (row["total_input_tokens"], row["total_output_tokens"]) == (200 * 8, 200 * 32)
    assert row["output_throughput"] == pytest.approx(200 * 32 / row["duration"], rel=0.01)
    for name in ("ttft", "tpot", "itl", "e2el"):
        # Answers that come in one piece have no time between pieces.
        if name != "itl" or row["p50_itl_ms"] is not None:
            assert 0 <= row[f"p50_{name}_ms"] <= row[f"p95_{name}_ms"] <= row[f"p99_{name}_ms"]
    assert 0 < row["median_ttft_ms"] <= row["median_e2el_ms"] <= 1000 * row["duration"]
    server.settled()


def test_the_engine_itself(long_model):
    """Measures that load without a server, as a table, with requests that come over time."""
    done = bench("-m", long_model, "-t", 1, "--num-prompts", 6, "--max-concurrency", 2, "--request-rate", 200,
                 "--input-len", 8, "--output-len", 8, "--max-num-seqs", 4)  # fmt: skip
    assert done.returncode == 0, done.stderr
    headers, row = (line.split("\t") for line in done.stdout.splitlines())
    assert headers == [
        "at once", "rate", "done", "req/s", "output tok/s", "total tok/s",
        *(f"{metric} ms, p50 / p95 / p99" for metric in ("TTFT", "TPOT", "ITL", "E2EL")),
    ]  # fmt: skip
    assert row[:3] == ["2", "200", "6 of 6"]
    assert "lengths: 8 tokens in, 8 out" in done.stderr


def test_a_sweep(long_model, tmp_path):
    """A row for each concurrency at each rate, with lengths of a file; goodput; a picture; the engine's counters."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"input_length": {n + 20}, "output_length": {n + 1}}}\n' for n in range(1, 7)))
    picture = tmp_path / "picture.svg"
    done = bench("-m", long_model, "-t", 1, "--num-prompts", 6, "--num-warmups", 3, "--max-concurrency", "1,3",
                 "--request-rate", "500,inf", "--dataset-path", trace, "--goodput", "ttft:100000 e2el:100000",
                 "--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99.9", "--plot", picture,
                 "--temperature", 0.8, "--top-p", 0.95, "--top-k", 50, "--repetition-penalty", 1.1,
                 "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["lengths"] == "trace.jsonl, on average 23.5 tokens in, 4.5 out"
    assert report["sampling"] == {
        "temperature": 0.8, "top_p": 0.95, "top_k": 50, "repetition_penalty": 1.1, "ignore_eos": True
    }  # fmt: skip
    assert report["goodput"] == {"ttft": 100000, "e2el": 100000}
    loads = [(row["max_concurrency"], row["request_rate"]) for row in report["rows"]]
    assert loads == [(1, 500), (1, "Infinity"), (3, 500), (3, "Infinity")]
    for row in report["rows"]:
        assert (row["completed"], row["total_input_tokens"], row["total_output_tokens"]) == (6, 141, 27)
        assert row["request_goodput"] == row["request_throughput"] > 0
        assert {"p50_ttft_ms", "p99.9_ttft_ms", "p99.9_itl_ms"} < set(row)
        assert "p50_e2el_ms" not in row
        # Prompts are new in each row.
        assert (row["num_preemptions"], row["prefix_cache_hits"]) == (0, 0)
    text = picture.read_text()
    assert text.count(">3 at once, 500/s<") == text.count(">1 at once<") == 2


def test_no_request_is_good_within_no_time(server):
    done = bench("--url", server.url, "--num-prompts", 3, "--input-len", 4, "--output-len", 2, "--format", "csv",
                 "--goodput", "ttft:0", "--seed", 1)  # fmt: skip
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert (row["completed"], float(row["request_goodput"]), row["request_rate"]) == ("3", 0.0, "inf")


def test_servers_of_others_get_what_was_asked_for(other_server):
    """A server without counts: a token for each piece, and none for the one that says why the text ended."""
    url, got = other_server
    done = bench("--url", f"{url}/v1", "--num-prompts", 4, "--num-warmups", 2, "--max-concurrency", "2,4",
                 "--input-len", 9, "--output-len", 5, "--served-model-name", "theirs", "--api-key", "secret",
                 "--temperature", 0.8, "--top-p", 0.95, "--top-k", 50, "--min-p", 0.1, "--presence-penalty", 0.5,
                 "--frequency-penalty", 0.25, "--extra-body", '{"repeat_penalty": 1.1}', "--format", "md")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"server: {url}/v1, theirs" in lines
    assert [line.split("|")[1:4] for line in lines[-2:]] == [[" 2 ", " all ", " 4 of 4 "], [" 4 ", " all ", " 4 of 4 "]]
    assert len(got) == 2 + 2 * 4
    for path, key, body in got:
        assert (path, key) == ("/v1/completions", "Bearer secret")
        prompt = body.pop("prompt")
        assert len(prompt) == 9
        assert body == {
            "model": "theirs", "max_tokens": 5, "temperature": 0.8, "top_p": 0.95, "top_k": 50, "min_p": 0.1,
            "presence_penalty": 0.5, "frequency_penalty": 0.25, "repeat_penalty": 1.1, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }  # fmt: skip
    rows = json.loads(bench("--url", url, "--num-prompts", 4, "--output-len", 5, "--json").stdout)["rows"]
    assert [row["total_output_tokens"] for row in rows] == [20]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--url", "ftp://somewhere"], 2, "expected an address such as"),
        (["--url", "http://127.0.0.1:9", "--num-prompts", "2"], 1, "2 of 2 requests failed"),
        (["--url", "http://127.0.0.1:9", "--num-warmups", "2"], 1, "2 of 2 requests of the warm-up failed"),
        (["--request-rate", "0"], 2, "--request-rate: got '0', expected numbers above 0"),
        (["--request-rate", "1,x"], 2, "--request-rate: got '1,x', expected numbers above 0"),
        (["--max-concurrency", "0"], 2, "--max-concurrency: '0' is not a list of positive numbers"),
        (["--max-concurrency", ","], 2, "--max-concurrency: got ',', expected numbers"),
        (["--max-concurrency", "8", "--num-prompts", "7"], 2, "got 8 requests at once, but there are 7 in all"),
        (["--percentile-metrics", "ttft,x"], 2, "got 'ttft,x', expected some of ttft,tpot,itl,e2el"),
        (["--metric-percentiles", "101"], 2, "got '101', expected numbers from 0 to 100"),
        (["--goodput", "itl:5"], 2, "--goodput: got 'itl:5', expected a metric of ttft, tpot, e2el and milliseconds"),
        (["--goodput", "ttft:x"], 2, "--goodput: got 'ttft:x', expected a metric"),
        (["--goodput", "ttft:-1"], 2, "--goodput: got 'ttft:-1', expected a metric"),
        (["--goodput", "ttft:5 ttft:6"], 2, "--goodput: got two limits for ttft, expected one"),
        (["--plot", "a.gif"], 2, "--plot: got a.gif, expected a name in .svg, .png, .pdf"),
        (["--plot", "no-such-folder/a.png"], 2, "but there is no folder no-such-folder"),
        (["--top-p", "3"], 2, "top_p: got 3, expected"),
        (["--extra-body", '{"n": 2}'], 2, "--extra-body: got n, which the command sets itself"),
        (["--extra-body", "[1]"], 2, "got [1], expected a JSON object"),
        (["--extra-body", '{"no_such_field": 1}'], 2, "unexpected keyword argument 'no_such_field'"),
        (["--dataset-path", "no-such-file"], 2, "'no-such-file' does not exist"),
        (["--dataset-path", "pyproject.toml"], 2, "pyproject.toml, line 1: expected an object with input_length"),
        (["--dataset-path", "pyproject.toml", "--input-len", "5"], 2, "--input-len does not go with --dataset-path"),
        (["--prompt", "128"], 2, "--prompt does not go with --serve"),
        (["--api-key", "x"], 2, "--api-key needs --url"),
        (["--url", "http://127.0.0.1:9", "-t", "1"], 2, "--threads does not go with --url"),
    ],
)
def test_errors(arguments, code, said, request, monkeypatch):
    monkeypatch.chdir(request.config.rootpath)
    monkeypatch.setenv("COLUMNS", "200")
    # In this process: a new one takes a second to import what it needs.
    done = CliRunner().invoke(app, ["bench", "--serve", *arguments])
    assert done.exit_code == code
    assert said in " ".join(done.stderr.replace("│", " ").split())


def test_refusals_are_told(server):
    """Requests that the server refuses are counted, with its own words."""
    done = bench("--url", server.url, "--served-model-name", "other", "--num-prompts", 3, "--json")
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)["rows"]
    assert row["failed"] == 3
    assert "expected one of those that are served: tiny" in row["errors"][0]


def test_answers_that_are_too_short_are_told(server):
    """The server's context of 512 tokens has no room for what was asked for."""
    done = bench("--url", server.url, "--num-prompts", 2, "--input-len", 500, "--output-len", 50, "--json", "--seed", 2)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["shorter"], row["total_output_tokens"]) == (2, 2 * 12)
    assert "2 of 2 answers have fewer tokens than were asked for" in done.stderr


@pytest.mark.parametrize("option", [("--url", "http://127.0.0.1:1"), ("--goodput", "ttft:5"), ("--num-prompts", "5")])
def test_options_that_need_serve(option):
    done = CliRunner().invoke(app, ["bench", *option])
    assert done.exit_code == 2
    assert f"{option[0]} needs --serve" in done.stderr


def test_a_picture_needs_its_library():
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from rocmforge.cli import main\n"
        "sys.argv = ['rocmforge', 'bench', '--serve', '--plot', 'a.png']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'rocmforge[plot]'" in " ".join(done.stderr.replace("│", " ").split())
