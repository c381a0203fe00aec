"""Snapshots of an engine."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rocmforge.outputs import RequestMetrics

BLOCK_DTYPE = np.dtype([("state", "u1"), ("owners", "u4"), ("hashed", "?"), ("idle_seconds", "f8")])
"""One record of a block map. `state`: 0 free, 1 cached (no owner, but content that a prefix may hit), 2 owned."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many durations were at most so long, as Prometheus counts them (but not added up)."""

    bounds: tuple[float, ...]
    """Seconds, ascending."""
    counts: tuple[int, ...]
    """One per bound: above the one before it, up to this one. One more at the end, for what is above all."""
    sum: float
    """Of all durations, in seconds."""

    @property
    def total(self) -> int:
        """Durations that were recorded."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges, and counters since the engine started; consistent with each other."""

    num_waiting: int
    """Sequences that were accepted and hold no blocks. One that has not ended always waits or runs."""
    num_running: int
    num_preemptions: int
    num_finished: dict[str, int]
    """By finish reason: `stop`, `length`, `abort`, `timeout`, `error`."""
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_owned: int
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache; none without `enable_prefix_caching`."""
    prefix_cache_hits: int
    """Prompt tokens found there."""
    prefix_cache_evictions: int
    block_lifetime: Histogram
    """Of evicted blocks: from when they were taken to their eviction."""
    block_idle_before_evict: Histogram
    """Of evicted blocks: from their last use to their eviction."""
    block_reuse_gap: Histogram
    """Of blocks that a prefix hit: from their last use to this one."""
    prompt_tokens: int
    generated_tokens: int
    engine_steps: int
    logits_rows_fetched: int
    """Tokens for which the best candidates did not decide, so that a whole row of logits was read from the device."""
    device_allocations: int
    """Constant while serving: requests own no device memory."""
    finished_records: int
    """Records of finished requests that are still kept (see `retention`)."""


def stats_from(fields: dict[str, Any]) -> Stats:
    """The engine's snapshot as an object."""
    for name in ("block_lifetime", "block_idle_before_evict", "block_reuse_gap"):
        bounds, counts, total = fields[name]
        fields[name] = Histogram(tuple(bounds), tuple(counts), total)
    return Stats(**fields)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """How a request ended."""

    request_id: str
    finish_reason: str
    """Of the sequence that ended last: `stop`, `length`, `abort`, `timeout` or `error`."""
    error: str | None
    num_prompt_tokens: int
    num_generated_tokens: int
    """Of all its sequences."""
    metrics: RequestMetrics


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Bytes held on the device, by purpose."""

    weights: int
    kv_cache: int
    scratch: int
    other: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.kv_cache + self.scratch + self.other
