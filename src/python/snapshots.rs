//! What an engine knows of itself and of finished requests, as Python sees it.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::output::{Metrics, metrics_fields, reason_name};
use crate::engine::{RequestRecord, Stats};
use crate::kv_cache::Histogram;

/// The fields of `rocmforge.Stats`.
pub(super) fn stats_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let finished = PyDict::new(py);
    finished.set_item("stop", stats.num_finished_stop)?;
    finished.set_item("length", stats.num_finished_length)?;
    finished.set_item("abort", stats.num_finished_abort)?;
    finished.set_item("timeout", stats.num_finished_timeout)?;
    finished.set_item("error", stats.num_finished_error)?;
    let dict = PyDict::new(py);
    dict.set_item("num_waiting", stats.num_waiting)?;
    dict.set_item("num_running", stats.num_running)?;
    dict.set_item("num_preemptions", stats.num_preemptions)?;
    dict.set_item("num_finished", finished)?;
    dict.set_item("blocks_total", stats.kv_cache.blocks_total)?;
    dict.set_item("blocks_free", stats.kv_cache.blocks_free)?;
    dict.set_item("blocks_cached", stats.kv_cache.blocks_cached)?;
    dict.set_item("blocks_owned", stats.kv_cache.blocks_owned)?;
    dict.set_item("prefix_cache_queries", stats.kv_cache.prefix_cache_queries)?;
    dict.set_item("prefix_cache_hits", stats.kv_cache.prefix_cache_hits)?;
    dict.set_item("prefix_cache_evictions", stats.kv_cache.evictions)?;
    let residency = &stats.kv_cache.residency;
    dict.set_item("block_lifetime", histogram(&residency.lifetime))?;
    dict.set_item("block_idle_before_evict", histogram(&residency.idle_before_evict))?;
    dict.set_item("block_reuse_gap", histogram(&residency.reuse_gap))?;
    dict.set_item("prompt_tokens", stats.prompt_tokens)?;
    dict.set_item("generated_tokens", stats.generated_tokens)?;
    dict.set_item("engine_steps", stats.engine_steps)?;
    dict.set_item("logits_rows_fetched", stats.logits_rows_fetched)?;
    dict.set_item("device_allocations", stats.device_allocations)?;
    dict.set_item("finished_records", stats.finished_records)?;
    Ok(dict)
}

/// Upper bounds in seconds, counts (one more, for what is above all of them), sum in seconds.
fn histogram(durations: &Histogram) -> (Vec<f64>, Vec<u64>, f64) {
    let seconds = |micros: u64| micros as f64 / 1e6;
    (Histogram::BOUNDS.map(seconds).to_vec(), durations.counts.to_vec(), seconds(durations.sum))
}

/// Finish reason, error, tokens of prompt and output, and the fields of `rocmforge.RequestMetrics`.
pub(super) type RecordFields = (&'static str, Option<String>, usize, usize, Metrics);

pub(super) fn record_fields(record: &RequestRecord) -> RecordFields {
    let error = record.error.as_ref().map(ToString::to_string);
    (
        reason_name(record.finish_reason),
        error,
        record.prompt_tokens,
        record.generated_tokens,
        metrics_fields(&record.metrics),
    )
}
