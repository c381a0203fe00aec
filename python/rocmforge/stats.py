"""Snapshots of an engine."""

from dataclasses import dataclass

import numpy as np

BLOCK_DTYPE = np.dtype([("state", "u1"), ("owners", "u4"), ("hashed", "?"), ("idle_seconds", "f8")])
"""One record of a block map. `state`: 0 free, 1 cached (no owner, but content that a prefix may hit), 2 owned."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Gauges, and counters since the engine started; consistent with each other."""

    num_waiting: int
    num_running: int
    num_preemptions: int
    num_finished: dict[str, int]
    """By finish reason: `stop`, `length`, `abort`, `timeout`, `error`."""
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_owned: int
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int
    """Prompt tokens found there."""
    prefix_cache_evictions: int
    prompt_tokens: int
    generated_tokens: int
    engine_steps: int
    logits_rows_fetched: int
    """Tokens for which the best candidates did not decide, so that a whole row of logits was read from the device."""
    device_allocations: int
    """Constant while serving: requests own no device memory."""
    finished_records: int
    """Records of finished requests that are still kept (see `retention`)."""


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
