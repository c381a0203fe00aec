"""The figures of a load test, with the names and definitions of `vllm bench serve`.

- TTFT: time to the first token
- TPOT: time per token after the first
- ITL: time between two pieces of an answer
- E2EL: time to the last token
- goodput: requests per second whose times were all within the limits
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmforge.cli.load.requests import Answered, Load, Outcome

METRICS = ("ttft", "tpot", "itl", "e2el")
# These metrics have one value for each request, so a limit can apply to a request.
LIMITED = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds over all requests, or over all pieces."""

    mean: float
    median: float
    std: float
    """Population standard deviation."""
    percentiles: dict[float, float]
    """Values by percentile, linearly interpolated."""

    @classmethod
    def of(cls, seconds: Sequence[float], percentiles: Sequence[float]) -> "Times | None":
        """Summarizes times; returns `None` without any."""
        if not seconds:
            return None
        return cls(
            mean=_ms(statistics.fmean(seconds)),
            median=_ms(statistics.median(seconds)),
            std=_ms(statistics.pstdev(seconds)),
            percentiles={percentile: _ms(float(np.percentile(seconds, percentile))) for percentile in percentiles},
        )


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The figures of one load test."""

    max_concurrency: int | None
    request_rate: float
    num_prompts: int
    completed: int
    failed: int
    errors: list[str]
    """The messages of failed requests, each once."""
    shorter: int
    """Completed requests with fewer tokens than requested."""
    duration: float
    """Seconds."""
    total_input_tokens: int
    """Tokens of completed requests, as is `total_output_tokens`."""
    total_output_tokens: int
    request_throughput: float
    """Requests per second."""
    request_goodput: float | None
    """Requests per second within the limits; `None` without limits."""
    output_throughput: float
    """Tokens per second."""
    total_token_throughput: float
    percentiles: Sequence[float]
    times: dict[str, Times | None]
    """Times by metric, each with these percentiles; `None` without any times."""
    counts: dict[str, int]
    """The engine's counters for this load test, by the names of `Stats`; empty for a server."""

    def row(self) -> dict[str, Any]:
        """Returns the figures as a flat dictionary with the keys of vLLM's result files; missing ones are `None`."""
        row: dict[str, Any] = {
            one.name: getattr(self, one.name)
            for one in dataclasses.fields(self)
            if one.name not in ("percentiles", "times", "counts")
        }
        for metric, times in self.times.items():
            for part in ("mean", "median", "std"):
                row[f"{part}_{metric}_ms"] = times and getattr(times, part)
            for percentile in self.percentiles:
                row[f"{percentile_name(percentile)}_{metric}_ms"] = times and times.percentiles[percentile]
        return row | self.counts


def percentile_name(percentile: float) -> str:
    """Returns vLLM's name of a percentile: `p99`, `p99.9`."""
    return f"p{percentile:g}"


def report(
    load: Load,
    outcome: Outcome,
    metrics: Sequence[str],
    percentiles: Sequence[float],
    limits: Mapping[str, float],
    counts: dict[str, int],
) -> LoadReport:
    """Computes the figures.

    Args:
        load: The requests.
        outcome: The answers, in the order of the requests.
        metrics: The requested ones of `METRICS`.
        percentiles: The percentiles to compute for each metric.
        limits: Limits in milliseconds, by metric; without any there is no goodput.
        counts: The engine's counters for this load test.
    """
    answers, duration = outcome
    good = [one for one in answers if one.error is None]
    output_tokens = sum(one.tokens for one in good)
    shorter = sum(
        one.error is None and one.tokens < lengths.output for one, lengths in zip(answers, load.lengths, strict=True)
    )
    input_tokens = sum(one.input_len for one in good)
    within = sum(_is_within(one, limits) for one in good)
    return LoadReport(
        max_concurrency=load.max_concurrency,
        request_rate=load.request_rate,
        num_prompts=len(load.lengths),
        completed=len(good),
        failed=len(answers) - len(good),
        errors=sorted({one.error for one in answers if one.error is not None}),
        shorter=shorter,
        duration=round(duration, 3),
        total_input_tokens=input_tokens,
        total_output_tokens=output_tokens,
        request_throughput=round(len(good) / duration, 3),
        request_goodput=round(within / duration, 3) if limits else None,
        output_throughput=round(output_tokens / duration, 2),
        total_token_throughput=round((input_tokens + output_tokens) / duration, 2),
        percentiles=percentiles,
        times={metric: Times.of(_seconds(good, metric), percentiles) for metric in metrics},
        counts=counts,
    )


def _is_within(one: Answered, limits: Mapping[str, float]) -> bool:
    return all(1000 * getattr(one, metric) <= limit for metric, limit in limits.items())


def _seconds(answers: Sequence[Answered], metric: str) -> list[float]:
    if metric == "itl":
        return [time for one in answers for time in one.itl]
    # An answer of a single token has no time per output token; it would count as zero here.
    return [getattr(one, metric) for one in answers if metric != "tpot" or one.tokens > 1]


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
