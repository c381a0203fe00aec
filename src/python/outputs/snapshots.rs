//! Statistics of an engine and records of finished requests, as instances of the public dataclasses in
//! `rocmforge.stats` and `rocmforge.outputs`. Each struct here has the fields of one dataclass, whose constructor
//! refuses unknown names.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::update::reason_name;
use crate::backend::MemoryLedger;
use crate::config::{EngineConfig, SpeculativeConfig, SpeculativeMethod};
use crate::engine::{RequestMetrics, RequestRecord, Stats};
use crate::kv_cache::{Histogram, MissedTokens, PrefixMiss};

type Class = PyOnceLock<Py<PyType>>;

/// Returns an instance of the class `module.name` with these fields.
fn instance<'py>(
    py: Python<'py>,
    class: &'static Class,
    (module, name): (&str, &str),
    fields: impl IntoPyObject<'py, Target = PyDict, Output = Bound<'py, PyDict>, Error = PyErr>,
) -> PyResult<Bound<'py, PyAny>> {
    class.import(py, module, name)?.call((), Some(&fields.into_pyobject(py)?))
}

#[derive(IntoPyObject)]
struct HistogramFields<'py> {
    bounds: Bound<'py, PyTuple>,
    counts: Bound<'py, PyTuple>,
    sum: f64,
}

fn histogram<'py>(py: Python<'py>, durations: &Histogram) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Class = PyOnceLock::new();
    let seconds = |micros: u64| micros as f64 / 1e6;
    let fields = HistogramFields {
        bounds: PyTuple::new(py, Histogram::BOUNDS.map(seconds))?,
        counts: PyTuple::new(py, durations.counts)?,
        sum: seconds(durations.sum),
    };
    instance(py, &CLASS, ("rocmforge.stats", "Histogram"), fields)
}

/// Requests by finish reason.
#[derive(IntoPyObject)]
struct FinishedFields {
    stop: u64,
    length: u64,
    abort: u64,
    timeout: u64,
    error: u64,
}

/// Prompt tokens that were not in the prefix cache, by reason.
#[derive(IntoPyObject)]
struct MissedFields {
    last_block: u64,
    new: u64,
    evicted: u64,
    forgotten: u64,
    no_snapshot: u64,
    host_memory: u64,
    files: u64,
    unreadable: u64,
}

impl From<MissedTokens> for MissedFields {
    fn from(missed: MissedTokens) -> Self {
        let MissedTokens { last_block, new, evicted, forgotten, no_snapshot, host_memory, files, unreadable } = missed;
        Self { last_block, new, evicted, forgotten, no_snapshot, host_memory, files, unreadable }
    }
}

#[derive(IntoPyObject)]
struct StatsFields<'py> {
    num_waiting: usize,
    num_running: usize,
    num_preemptions: u64,
    num_finished: FinishedFields,
    blocks_total: usize,
    blocks_free: usize,
    blocks_cached: usize,
    blocks_owned: usize,
    state_slots_total: usize,
    state_slots_free: usize,
    state_slots_cached: usize,
    state_slots_owned: usize,
    prefix_cache_queries: u64,
    prefix_cache_hits: u64,
    prefix_cache_misses: MissedFields,
    prefix_cache_evictions: u64,
    state_evictions: u64,
    block_lifetime: Bound<'py, PyAny>,
    block_idle_before_evict: Bound<'py, PyAny>,
    block_reuse_gap: Bound<'py, PyAny>,
    cancel_to_free: Bound<'py, PyAny>,
    prompt_tokens: u64,
    generated_tokens: u64,
    engine_steps: u64,
    logits_rows_fetched: u64,
    device_allocations: u64,
    finished_records: usize,
    spec_decode_num_proposed_tokens: u64,
    spec_decode_num_drafts: u64,
    spec_decode_num_draft_tokens: u64,
    spec_decode_num_accepted_tokens: u64,
    spec_decode_num_accepted_tokens_per_pos: Bound<'py, PyTuple>,
    spec_decode_num_drafter_tokens: u64,
    mm_cache_queries: u64,
    mm_cache_hits: u64,
    image_tokens: u64,
    image_encoder_seconds: f64,
    expert_cache_hits: u64,
    expert_cache_misses: u64,
    expert_cache_copied_bytes: u64,
    kv_offload_memory_capacity: u64,
    kv_offload_memory_bytes: u64,
    kv_offload_memory_contents: usize,
    kv_offload_memory_hits: u64,
    kv_offload_saved: u64,
    kv_offload_lost: u64,
    kv_offload_loaded: u64,
    kv_offload_disk_capacity: u64,
    kv_offload_disk_bytes: u64,
    kv_offload_disk_contents: usize,
    kv_offload_disk_hits: u64,
    kv_offload_disk_written: u64,
    kv_offload_disk_read: u64,
    kv_offload_disk_dropped: u64,
    kv_offload_disk_unreadable: u64,
}

/// Returns a `rocmforge.Stats`.
pub(in crate::python) fn stats<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Class = PyOnceLock::new();
    let (cache, residency, drafted) = (&stats.kv_cache, &stats.kv_cache.residency, &stats.speculation);
    let offload = &stats.kv_offload;
    let fields = StatsFields {
        num_waiting: stats.num_waiting,
        num_running: stats.num_running,
        num_preemptions: stats.num_preemptions,
        num_finished: FinishedFields {
            stop: stats.num_finished_stop,
            length: stats.num_finished_length,
            abort: stats.num_finished_abort,
            timeout: stats.num_finished_timeout,
            error: stats.num_finished_error,
        },
        blocks_total: cache.blocks_total,
        blocks_free: cache.blocks_free,
        blocks_cached: cache.blocks_cached,
        blocks_owned: cache.blocks_owned,
        state_slots_total: cache.state_slots_total,
        state_slots_free: cache.state_slots_free,
        state_slots_cached: cache.state_slots_cached,
        state_slots_owned: cache.state_slots_owned,
        prefix_cache_queries: cache.prefix_cache_queries,
        prefix_cache_hits: cache.prefix_cache_hits,
        prefix_cache_misses: MissedFields::from(cache.prefix_cache_misses),
        prefix_cache_evictions: cache.evictions,
        state_evictions: cache.state_evictions,
        block_lifetime: histogram(py, &residency.lifetime)?,
        block_idle_before_evict: histogram(py, &residency.idle_before_evict)?,
        block_reuse_gap: histogram(py, &residency.reuse_gap)?,
        cancel_to_free: histogram(py, &stats.cancel_to_free)?,
        prompt_tokens: stats.prompt_tokens,
        generated_tokens: stats.generated_tokens,
        engine_steps: stats.engine_steps,
        logits_rows_fetched: stats.logits_rows_fetched,
        device_allocations: stats.device_allocations,
        finished_records: stats.finished_records,
        spec_decode_num_proposed_tokens: drafted.num_proposed_tokens,
        spec_decode_num_drafts: drafted.num_drafts,
        spec_decode_num_draft_tokens: drafted.num_draft_tokens,
        spec_decode_num_accepted_tokens: drafted.num_accepted_tokens,
        spec_decode_num_accepted_tokens_per_pos: PyTuple::new(py, &drafted.num_accepted_tokens_per_pos)?,
        spec_decode_num_drafter_tokens: drafted.num_drafter_tokens,
        mm_cache_queries: stats.images.num_queries,
        mm_cache_hits: stats.images.num_hits,
        image_tokens: stats.images.num_tokens,
        image_encoder_seconds: stats.images.busy_micros as f64 / 1e6,
        expert_cache_hits: stats.expert_cache.hits,
        expert_cache_misses: stats.expert_cache.misses,
        expert_cache_copied_bytes: stats.expert_cache.copied_bytes,
        kv_offload_memory_capacity: offload.index.memory_capacity,
        kv_offload_memory_bytes: offload.index.memory_bytes,
        kv_offload_memory_contents: offload.index.memory_contents,
        kv_offload_memory_hits: offload.index.memory_hit_tokens,
        kv_offload_saved: offload.index.saved,
        kv_offload_lost: offload.index.lost,
        kv_offload_loaded: offload.index.loaded,
        kv_offload_disk_capacity: offload.disk_capacity,
        kv_offload_disk_bytes: offload.disk_bytes,
        kv_offload_disk_contents: offload.index.disk_contents,
        kv_offload_disk_hits: offload.index.disk_hit_tokens,
        kv_offload_disk_written: offload.disk_written,
        kv_offload_disk_read: offload.disk_read,
        kv_offload_disk_dropped: offload.disk_dropped,
        kv_offload_disk_unreadable: offload.disk_unreadable,
    };
    instance(py, &CLASS, ("rocmforge.stats", "Stats"), fields)
}

#[derive(IntoPyObject)]
struct MetricsFields {
    arrival_time: f64,
    time_in_queue: Option<f64>,
    time_to_first_token: Option<f64>,
    total_time: Option<f64>,
    num_cached_tokens: usize,
    prefix_miss: Option<&'static str>,
    num_preemptions: usize,
}

/// Returns a `rocmforge.RequestMetrics`.
pub(super) fn request_metrics<'py>(py: Python<'py>, metrics: &RequestMetrics) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Class = PyOnceLock::new();
    let fields = MetricsFields {
        arrival_time: metrics.arrival_time,
        time_in_queue: metrics.time_in_queue,
        time_to_first_token: metrics.time_to_first_token,
        total_time: metrics.total_time,
        num_cached_tokens: metrics.num_cached_tokens,
        prefix_miss: metrics.prefix_miss.map(PrefixMiss::as_str),
        num_preemptions: metrics.num_preemptions,
    };
    instance(py, &CLASS, ("rocmforge.outputs", "RequestMetrics"), fields)
}

#[derive(IntoPyObject)]
struct RecordFields<'a, 'py> {
    request_id: &'a str,
    finish_reason: &'static str,
    error: Option<String>,
    num_prompt_tokens: usize,
    num_generated_tokens: usize,
    metrics: Bound<'py, PyAny>,
}

/// Returns a `rocmforge.RequestRecord`.
pub(in crate::python) fn request_record<'py>(py: Python<'py>, record: &RequestRecord) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Class = PyOnceLock::new();
    let fields = RecordFields {
        request_id: &record.name,
        finish_reason: reason_name(record.finish_reason),
        error: record.error.as_ref().map(ToString::to_string),
        num_prompt_tokens: record.prompt_tokens,
        num_generated_tokens: record.generated_tokens,
        metrics: request_metrics(py, &record.metrics)?,
    };
    instance(py, &CLASS, ("rocmforge.stats", "RequestRecord"), fields)
}

#[derive(IntoPyObject)]
struct MemoryFields {
    weights: u64,
    kv_cache: u64,
    scratch: u64,
    other: u64,
    host_weights: u64,
    kv_offload: u64,
}

/// Returns a `rocmforge.MemoryUsage`.
pub(in crate::python) fn memory_usage<'py>(py: Python<'py>, memory: &MemoryLedger) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: Class = PyOnceLock::new();
    let fields = MemoryFields {
        weights: memory.weights,
        kv_cache: memory.kv_cache,
        scratch: memory.scratch,
        other: memory.other,
        host_weights: memory.host_weights,
        kv_offload: memory.kv_offload,
    };
    instance(py, &CLASS, ("rocmforge.stats", "MemoryUsage"), fields)
}

/// The `SpeculativeConfig` of `rocmforge/settings.py`, a dictionary.
#[derive(IntoPyObject)]
pub(in crate::python) enum SpeculationFields {
    Text(LookupFields),
    Block(BlockFields),
    DraftModel(DraftModelFields),
}

#[derive(IntoPyObject)]
pub(in crate::python) struct LookupFields {
    method: &'static str,
    num_speculative_tokens: usize,
    prompt_lookup_max: usize,
    prompt_lookup_min: usize,
}

#[derive(IntoPyObject)]
pub(in crate::python) struct BlockFields {
    method: &'static str,
    num_speculative_tokens: usize,
}

#[derive(IntoPyObject)]
pub(in crate::python) struct DraftModelFields {
    method: &'static str,
    model: Option<String>,
    num_speculative_tokens: usize,
}

pub(in crate::python) fn speculation(config: &SpeculativeConfig) -> SpeculationFields {
    let &SpeculativeConfig { method, ref model, num_speculative_tokens, prompt_lookup_max, prompt_lookup_min } = config;
    let name = method.name();
    match method {
        SpeculativeMethod::Ngram => SpeculationFields::Text(LookupFields {
            method: name,
            num_speculative_tokens,
            prompt_lookup_max,
            prompt_lookup_min,
        }),
        SpeculativeMethod::Mtp => SpeculationFields::Block(BlockFields { method: name, num_speculative_tokens }),
        SpeculativeMethod::DraftModel => SpeculationFields::DraftModel(DraftModelFields {
            method: name,
            // The path came as JSON, which only holds text.
            model: model.as_ref().map(|path| path.to_string_lossy().into_owned()),
            num_speculative_tokens,
        }),
    }
}

/// The `ResolvedConfig` of `rocmforge/stats.py`, a dictionary.
#[derive(IntoPyObject)]
pub(in crate::python) struct ConfigFields {
    num_threads: usize,
    context_length: usize,
    max_model_len: usize,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    block_size: usize,
    num_blocks: usize,
    num_state_slots: usize,
    state_snapshot_interval: Option<usize>,
    kv_cache_dtype: &'static str,
    enable_prefix_caching: bool,
    max_queue_size: usize,
    max_num_partial_prefills: usize,
    max_long_partial_prefills: usize,
    long_prefill_token_threshold: usize,
    speculative_config: Option<SpeculationFields>,
    retention: f64,
    seed: Option<u64>,
    embedding_size: usize,
    pooling: &'static str,
}

impl From<&EngineConfig> for ConfigFields {
    fn from(config: &EngineConfig) -> Self {
        Self {
            num_threads: config.num_threads,
            context_length: config.context_length,
            max_model_len: config.max_model_len,
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            block_size: config.block_size,
            // The blocks of all groups together, like in the statistics.
            num_blocks: config.kv_groups.iter().map(|group| group.num_blocks).sum(),
            num_state_slots: config.states.map_or(0, |states| states.num_slots),
            state_snapshot_interval: config.states.map(|states| states.snapshot_interval),
            kv_cache_dtype: config.kv_cache_dtype.name(),
            enable_prefix_caching: config.enable_prefix_caching,
            max_queue_size: config.max_queue_size,
            max_num_partial_prefills: config.max_num_partial_prefills,
            max_long_partial_prefills: config.max_long_partial_prefills,
            long_prefill_token_threshold: config.long_prefill_token_threshold,
            speculative_config: config.speculative_config.as_ref().map(speculation),
            retention: config.retention.as_secs_f64(),
            seed: config.seed,
            embedding_size: config.embedding_size,
            pooling: config.pooling.name(),
        }
    }
}
