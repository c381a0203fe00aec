"""The parts of `rocmforge bench --serve`: lengths, when requests are sent, and the arithmetic, against values computed
by hand."""

import asyncio
import math
import time

import numpy as np
import pytest
import typer
from rocmforge.cli.load import options as load_options
from rocmforge.cli.load.lengths import Lengths, draw_lengths, read_lengths
from rocmforge.cli.load.plot import draw_loads
from rocmforge.cli.load.report import Times, report
from rocmforge.cli.load.requests import Answered, Load, Outcome, run_load

# Three requests of 5 tokens each, by hand: 100 ms to the first token, then 100 and 200 ms; one token after 300 ms; an
# error.
ANSWERS = [
    Answered(5, sent=0.0, pieces=[0.1, 0.2, 0.4], tokens=3),
    Answered(5, sent=1.0, pieces=[1.3], tokens=1),
    Answered(5, sent=1.0, pieces=[1.1], tokens=1, error="refused"),
]


def of_answers(answers=ANSWERS, metrics=("ttft", "tpot", "itl", "e2el"), percentiles=(50.0,), **limits):
    """Reports on answers to requests for three tokens each, two of them at once, within two seconds."""
    load = Load([Lengths(5, 3)] * len(answers), 2, math.inf, (0, 0))
    return report(load, Outcome(answers, 2.0), metrics, percentiles, limits, {"num_preemptions": 7})


def test_times():
    """Computed by hand: between 1 and 10 ms lie nine steps, of which the 90th percentile is 8.1 above the first."""
    times = Times.of([value / 1000 for value in range(10, 0, -1)], [0, 50, 90, 99.9, 100])
    assert (times.mean, times.median) == (5.5, 5.5)
    assert times.std == pytest.approx(math.sqrt(8.25), abs=1e-3)
    assert times.percentiles == pytest.approx({0: 1.0, 50: 5.5, 90: 9.1, 99.9: 9.991, 100: 10.0})
    assert Times.of([value / 1000 for value in range(1, 201)], [99]).percentiles == {99: 198.01}
    assert Times.of([], [50]) is None


def test_report():
    row = of_answers().row()
    assert (row["completed"], row["failed"], row["errors"], row["num_prompts"]) == (2, 1, ["refused"], 3)
    assert (row["total_input_tokens"], row["total_output_tokens"]) == (10, 4)
    assert (row["request_throughput"], row["output_throughput"], row["total_token_throughput"]) == (1.0, 2.0, 7.0)
    # Without a second token there is no time per token, and without a second piece none between pieces.
    expected = {"ttft": 200.0, "tpot": 150.0, "itl": 150.0, "e2el": 350.0}
    assert {metric: row[f"mean_{metric}_ms"] for metric in expected} == expected
    assert {metric: row[f"p50_{metric}_ms"] for metric in expected} == expected
    assert row["std_e2el_ms"] == 50.0
    assert row["request_goodput"] is None
    assert (row["max_concurrency"], row["request_rate"], row["num_preemptions"]) == (2, math.inf, 7)
    # Three tokens were asked for, and one request got a single one.
    assert row["shorter"] == 1


def test_only_times_that_are_wanted_are_in_a_row():
    row = of_answers(metrics=["tpot"], percentiles=[25, 99.9]).row()
    assert [name for name in row if name.endswith("_ms")] == [
        f"{part}_tpot_ms" for part in ("mean", "median", "std", "p25", "p99.9")
    ]
    # One piece alone has no time between pieces.
    row = of_answers(ANSWERS[1:], metrics=["itl"]).row()
    assert [value for name, value in row.items() if name.endswith("_ms")] == [None] * 4


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft": 1000.0}, 2),
        ({"ttft": 100.0}, 1),
        ({"ttft": 350.0, "e2el": 350.0}, 1),
        # A single token takes no time after itself.
        ({"tpot": 160.0}, 2),
        ({"tpot": 140.0}, 1),
        ({"ttft": 200.0, "e2el": 350.0}, 0),
    ],
)
def test_goodput(limits, good):
    """Requests within all limits, per second of two; one that failed is never good."""
    assert of_answers(**limits).request_goodput == good / 2


async def sent_by(load, seconds=0.0):
    """When each request was sent, its prompt and its number of tokens, and the most that were under way at once."""
    sent, under_way, most = [], 0, 0

    async def ask(prompt, max_tokens):
        nonlocal under_way, most
        sent.append((time.perf_counter(), prompt, max_tokens))
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(seconds)
        under_way -= 1
        yield 1

    outcome = await run_load(ask, load)
    assert [one.error for one in outcome.answers] == [None] * len(load.lengths)
    return sent, most


async def test_closed_loop():
    lengths = [Lengths(number + 1, 2 * number + 1) for number in range(12)]
    sent, most = await sent_by(Load(lengths, 3, math.inf, (0, 0)), 0.002)
    assert most == 3
    assert [(len(prompt), max_tokens) for _, prompt, max_tokens in sent] == lengths
    assert (await sent_by(Load(lengths, None, math.inf, (0, 0)), 0.002))[1] == len(lengths)


async def test_poisson_arrivals(monkeypatch):
    """The gaps of 400 arrivals at 2000 a second: half a millisecond on average, and as far from it as random ones."""
    now, give_way = 0.0, asyncio.sleep

    async def sleep(seconds):
        nonlocal now
        await give_way(0)
        now += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    sent, _ = await sent_by(Load([Lengths(1, 1)] * 400, None, 2000.0, (0, 0)))
    gaps = np.diff([when for when, _, _ in sent])
    assert gaps.mean() == pytest.approx(0.0005, rel=0.1)
    assert gaps.std() == pytest.approx(0.0005, rel=0.1)


async def test_loads_of_a_run_have_no_prompt_in_common():
    """Nor two runs with other seeds; the same seed and place give the same prompts."""
    prompts = [
        [tuple(prompt) for _, prompt, _ in (await sent_by(Load([Lengths(8, 1)] * 5, None, math.inf, seed)))[0]]
        for seed in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert len(set(prompts[0] + prompts[1] + prompts[2])) == 15
    assert prompts[3] == prompts[0]


def test_lengths_of_a_file(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 1, "input_length": 5, "output_length": 2}\n\n{"output_length": 9, "input_length": 7}'
    )
    assert read_lengths(file) == [Lengths(5, 2), Lengths(7, 9)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"input_length": 5}', "line 1: got .*input_length.*expected an object with input_length and output_length"),
        ('{"input_length": 5, "output_length": 0}', "line 1: got .*whole numbers from 1 on"),
        ('{"input_length": 5, "output_length": true}', "line 1: got"),
        ('{"input_length": 5.5, "output_length": 1}', "line 1: got"),
        ("\n[5, 2]", r"line 2: got \[5, 2\], expected an object"),
        ("5 2", "line 1: expected an object"),
        (b"\xff", "line 1: expected an object"),
        ("", "got no line, expected JSON lines"),
    ],
)
def test_files_of_lengths_that_are_none(tmp_path, text, said):
    file = tmp_path / "trace.jsonl"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=said):
        read_lengths(file)


def test_drawing_takes_each_length_as_often_as_the_others():
    lengths = [Lengths(number, 1) for number in range(1, 11)]
    drawn = draw_lengths(lengths, 25, 0)
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == lengths
    assert drawn[:10] != drawn[10:20]
    assert len(set(drawn[20:])) == 5
    assert draw_lengths(lengths, 25, 0) == drawn != draw_lengths(lengths, 25, 1)


def test_lists_of_options():
    assert load_options.concurrencies("1,8", 8) == [1, 8]
    assert load_options.concurrencies(None, 8) == [None]
    assert load_options.request_rates("0.5,inf") == [0.5, math.inf]
    assert load_options.percentiles("50,99.9,50") == [50.0, 99.9]
    assert load_options.metrics("e2el,ttft") == ["e2el", "ttft"]
    expected = {"ttft": 500.0, "tpot": 50.0, "e2el": 2500.5}
    for texts in (["ttft:500 tpot:50 e2el:2500.5"], ["ttft:500,tpot:50", "e2el:2500.5"]):
        assert load_options.limits(texts) == expected
    assert load_options.limits(None) == {}


def test_fields_of_requests():
    """Settings that were not given are left to the server; further fields win."""
    sampling = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "min_p": None}
    settings = load_options.request_settings(sampling, {"logit_bias": {"5": -1.5}, "top_k": 7})
    assert settings == {
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 7,
        "ignore_eos": True,
        "logit_bias": {"5": -1.5},
    }
    params = load_options.engine_params({**settings, "structured_outputs": {"regex": "a+"}})
    assert (params.temperature, params.top_p, params.top_k, params.ignore_eos) == (0.8, pytest.approx(0.95), 7, True)
    assert params.logit_bias == {5: -1.5}
    assert params.structured_outputs.regex == "a+"


@pytest.mark.parametrize("fields", [{"logit_bias": {"x": 1}}, {"nonsense": 1}, {"structured_outputs": {"choice": []}}])
def test_fields_that_the_engine_does_not_know(fields):
    with pytest.raises(typer.BadParameter):
        load_options.engine_params(fields)


def test_a_picture_has_a_panel_for_each_time_and_a_point_for_each_load(tmp_path):
    reports = [of_answers(), of_answers(ANSWERS[:1]), of_answers(ANSWERS[2:])]
    draw_loads(reports, "a title\nof two lines", tmp_path / "loads.svg")
    text = (tmp_path / "loads.svg").read_text()
    for shown in ("TTFT, ms", "TPOT, ms", "ITL, ms", "E2EL, ms", "output tokens per second", "a title", "p50"):
        assert text.count(f">{shown}<") == 1, shown
    # The third load has no completed request, so no times.
    assert text.count(">2 at once<") == 2 * 4
    draw_loads(reports[2:], "nothing", tmp_path / "nothing.png")
    assert (tmp_path / "nothing.png").read_bytes().startswith(b"\x89PNG")
