"""Snapshots of an engine."""

from dataclasses import dataclass, fields
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from rocmforge.display.notebook import table
from rocmforge.outputs import FinishReason, RequestMetrics

BLOCK_DTYPE = np.dtype([("state", "u1"), ("owners", "u4"), ("hashed", "?"), ("idle_seconds", "f8")])
"""Dtype of a block map. `state`: 0 free, 1 cached (no owner, but content that a prefix may hit), 2 owned."""
BLOCK_STATES = ("free", "cached", "owned")
"""The names of the states: `np.array(BLOCK_STATES)[block_map["state"]]` names those of all blocks."""


class BlockColumns(TypedDict):
    """A block map by its fields, as the engine gives it."""

    state: NDArray[np.uint8]
    owners: NDArray[np.uint32]
    hashed: NDArray[np.bool_]
    idle_seconds: NDArray[np.float64]


class ResolvedConfig(TypedDict):
    """The result of `config`: the arguments as they were resolved for a model and a machine."""

    num_threads: int
    context_length: int
    """The length that the model was made for: the most that `max_model_len` can be."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    """Blocks of the KV cache."""
    num_state_slots: int
    """Slots of recurrent states: those of running sequences, and snapshots. 0 for a model without such states."""
    state_snapshot_interval: int | None
    """Tokens of a long prompt between two snapshots; `None` for a model without such states."""
    kv_cache_dtype: str
    enable_prefix_caching: bool
    max_queue_size: int
    max_num_partial_prefills: int
    max_long_partial_prefills: int
    long_prefill_token_threshold: int
    speculative_config: dict[str, str | int] | None
    retention: float
    seed: int | None
    embedding_size: int
    """Values of an embedding."""
    pooling: str
    """The default pooling of `embed`: `last`, `mean` or `cls`; `rank` for a ranking model."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of durations by their length, in the buckets of a Prometheus histogram (but not added up)."""

    bounds: tuple[float, ...]
    """Seconds, ascending."""
    counts: tuple[int, ...]
    """Durations per bound: above the bound before it, up to this one. One more count is for those above all bounds."""
    sum: float
    """Sum of all durations, in seconds."""

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
    """Counts by finish reason: `stop`, `length`, `abort`, `timeout`, `error`."""
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_owned: int
    state_slots_total: int
    """Slots of recurrent states; 0 for a model without such."""
    state_slots_free: int
    state_slots_cached: int
    """Snapshots that a prefix may hit."""
    state_slots_owned: int
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache; none without `enable_prefix_caching`."""
    prefix_cache_hits: int
    """Prompt tokens found in the prefix cache."""
    prefix_cache_misses: dict[str, int]
    """Prompt tokens not found there, by `RequestMetrics.prefix_miss`: `last_block`, `new`, `evicted`, `forgotten`,
    `no_snapshot`, `host_memory`, `files`, `unreadable`."""
    prefix_cache_evictions: int
    state_evictions: int
    """Evicted snapshots of recurrent states."""
    block_lifetime: Histogram
    """Time of evicted blocks from when they were taken to their eviction."""
    block_idle_before_evict: Histogram
    """Time of evicted blocks from their last use to their eviction."""
    block_reuse_gap: Histogram
    """Time of blocks that a prefix hit, from their last use to the hit."""
    cancel_to_free: Histogram
    """Time from the call that aborts a request until its blocks are free."""
    prompt_tokens: int
    generated_tokens: int
    engine_steps: int
    logits_rows_fetched: int
    """Tokens for which the best candidates did not decide, so that a whole row of logits was read from the device."""
    device_allocations: int
    """Constant while serving: requests own no device memory."""
    finished_records: int
    """Records of finished requests that are still kept (see `retention`)."""
    spec_decode_num_proposed_tokens: int
    """Proposed tokens that the text offered; the engine chose by benefit and cost how many became draft tokens.
    With `mtp` and `draft_model`, the tokens that were computed, each for a step that verifies it."""
    spec_decode_num_drafts: int
    """Times that a step verified draft tokens of a sequence."""
    spec_decode_num_draft_tokens: int
    """Draft tokens that were verified."""
    spec_decode_num_accepted_tokens: int
    """Draft tokens that were accepted."""
    spec_decode_num_accepted_tokens_per_pos: tuple[int, ...]
    """Draft tokens that were accepted, by position among the draft tokens of one step."""
    spec_decode_num_drafter_tokens: int
    """Tokens that were computed for drafting: by the MTP block, or by the draft model, including those to catch up."""
    mm_cache_queries: int
    """Images of requests."""
    mm_cache_hits: int
    """Images whose rows were still there from an earlier request, so that the encoder did not run."""
    image_tokens: int
    """Tokens of images that the encoder computed."""
    image_encoder_seconds: float
    """Time that the image encoder worked."""
    expert_cache_hits: int
    """Uses of experts in host memory that had a copy on the GPU; see `expert_cache`."""
    expert_cache_misses: int
    """Uses of experts in host memory that had none."""
    expert_cache_copied_bytes: int
    """Bytes that were copied into that cache."""
    kv_offload_memory_capacity: int
    """Bytes of host memory for evicted blocks and snapshots (`kv_offload_memory`)."""
    kv_offload_memory_bytes: int
    kv_offload_memory_contents: int
    """Blocks and snapshots in host memory."""
    kv_offload_memory_hits: int
    """Prompt tokens found in host memory, including those that were read from files first."""
    kv_offload_saved: int
    """Blocks and snapshots copied from the device to host memory."""
    kv_offload_lost: int
    """Blocks and snapshots that were evicted before they could be copied."""
    kv_offload_loaded: int
    """Blocks and snapshots copied from host memory to the device."""
    kv_offload_disk_capacity: int
    """Maximum bytes of the folder `kv_offload_dir`; 0 without one."""
    kv_offload_disk_bytes: int
    """Bytes of all files in the folder, as far as the engine knows."""
    kv_offload_disk_contents: int
    """Blocks and snapshots of this model in files."""
    kv_offload_disk_hits: int
    """Prompt tokens that were read from files."""
    kv_offload_disk_written: int
    kv_offload_disk_read: int
    kv_offload_disk_dropped: int
    """Blocks and snapshots that were not written: too many were waiting, or a write has failed."""
    kv_offload_disk_unreadable: int
    """Files that had vanished or were damaged when they were read."""

    def _repr_html_(self) -> str:
        return table("Stats", [(field.name, _shown(getattr(self, field.name))) for field in fields(self)])


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """The end of a request."""

    request_id: str
    finish_reason: FinishReason
    """Finish reason of the sequence that ended last."""
    error: str | None
    num_prompt_tokens: int
    num_generated_tokens: int
    """Tokens of all its sequences."""
    metrics: RequestMetrics


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Bytes held on the device, by purpose, and those in the host's memory."""

    weights: int
    kv_cache: int
    scratch: int
    other: int
    host_weights: int = 0
    """Page-locked memory of the host with weights of a GPU's model, and rows of experts that the CPU computes."""
    kv_offload: int = 0
    """Host memory for evicted KV blocks and snapshots, at most."""

    @property
    def total(self) -> int:
        """The bytes on the device."""
        return self.weights + self.kv_cache + self.scratch + self.other

    def _repr_html_(self) -> str:
        names = [field.name for field in fields(self)]
        return table("MemoryUsage", [(name, byte_text(getattr(self, name))) for name in (*names, "total")])


def byte_text(count: int) -> str:
    """A number of bytes for people, in decimal units: `96.6 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.{1 if unit == 'MB' else 2}f} {unit}"
    return f"{count} bytes"


def _shown(value: Any) -> str:
    if isinstance(value, Histogram):
        mean = f", {value.sum / value.total:.3g} s on average" if value.total else ""
        return f"{value.total:,}{mean}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count:,}" for name, count in value.items() if count) or "0"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value:,}"
