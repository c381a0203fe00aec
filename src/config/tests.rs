use super::{EngineArgs, GpuOptions};
use crate::{Error, Result};

fn names(result: Result<()>) -> String {
    match result.unwrap_err() {
        Error::InvalidRequest { what, .. } => what.to_string(),
        other => panic!("{other}"),
    }
}

#[test]
fn the_defaults_are_valid() {
    EngineArgs::new("model.gguf").validate().unwrap();
}

/// S22, K9: engine arguments out of range.
#[test]
fn bad_engine_args() {
    let d = || EngineArgs::new("model.gguf");
    let cases = [
        ("model", EngineArgs::new("")),
        ("num_threads", EngineArgs { num_threads: Some(0), ..d() }),
        ("num_threads", EngineArgs { num_threads: Some(usize::MAX), ..d() }),
        ("max_model_len", EngineArgs { max_model_len: Some(0), ..d() }),
        ("max_model_len", EngineArgs { max_model_len: Some(usize::MAX), ..d() }),
        ("max_num_seqs", EngineArgs { max_num_seqs: Some(0), ..d() }),
        ("max_num_seqs", EngineArgs { max_num_seqs: Some(usize::MAX), ..d() }),
        ("max_num_batched_tokens", EngineArgs { max_num_batched_tokens: Some(0), ..d() }),
        ("max_num_batched_tokens", EngineArgs { max_num_batched_tokens: Some(63), max_num_seqs: Some(64), ..d() }),
        ("block_size", EngineArgs { block_size: 0, ..d() }),
        ("block_size", EngineArgs { block_size: usize::MAX, ..d() }),
        ("max_queue_size", EngineArgs { max_queue_size: 0, ..d() }),
        ("state_snapshot_interval", EngineArgs { state_snapshot_interval: Some(0), ..d() }),
        ("state_snapshot_interval", EngineArgs { state_snapshot_interval: Some(usize::MAX), ..d() }),
        ("kv_cache_memory", EngineArgs { kv_cache_memory: Some(0), ..d() }),
        ("gpu_memory_limit", EngineArgs { gpu: GpuOptions { memory_limit: Some(0), ..GpuOptions::default() }, ..d() }),
    ];
    for (name, args) in cases {
        assert_eq!(names(args.validate()), name);
    }
}
