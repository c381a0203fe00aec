use super::{EngineArgs, GpuOptions, SamplingParams};
use crate::{Error, Result};

fn names(result: Result<()>) -> String {
    match result.unwrap_err() {
        Error::InvalidRequest { what, .. } => what.to_string(),
        other => panic!("{other}"),
    }
}

/// Returns the names of a value's fields, which its debug text indents by four spaces.
pub(super) fn fields(value: &impl std::fmt::Debug) -> Vec<String> {
    let text = format!("{value:#?}");
    let names = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
    names.map(|(name, _)| name.to_owned()).filter(|name| !name.starts_with(' ')).collect()
}

#[test]
fn sampling_params_list_their_fields() {
    assert_eq!(fields(&SamplingParams::DEFAULT), SamplingParams::FIELDS);
}

#[test]
fn the_defaults_are_valid() {
    SamplingParams::default().validate().unwrap();
    EngineArgs::new("model.gguf").validate().unwrap();
}

/// S22: every setting out of range, including NaN, is an error that names it.
#[test]
fn bad_sampling_params() {
    let d = SamplingParams::default;
    let cases = [
        ("n", SamplingParams { n: 0, ..d() }),
        ("n", SamplingParams { n: usize::MAX, ..d() }),
        ("max_tokens", SamplingParams { max_tokens: 0, ..d() }),
        ("min_tokens", SamplingParams { max_tokens: 4, min_tokens: 5, ..d() }),
        ("temperature", SamplingParams { temperature: -0.1, ..d() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..d() }),
        ("temperature", SamplingParams { temperature: f32::INFINITY, ..d() }),
        ("top_p", SamplingParams { top_p: 0.0, ..d() }),
        ("top_p", SamplingParams { top_p: 1.01, ..d() }),
        ("top_p", SamplingParams { top_p: f32::NAN, ..d() }),
        ("min_p", SamplingParams { min_p: -0.5, ..d() }),
        ("min_p", SamplingParams { min_p: f32::NAN, ..d() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..d() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: f32::NAN, ..d() }),
        ("presence_penalty", SamplingParams { presence_penalty: 2.5, ..d() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: f32::NEG_INFINITY, ..d() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(0, f32::NAN)], ..d() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(0, f32::INFINITY)], ..d() }),
        ("number of logit_bias entries", SamplingParams { logit_bias: vec![(0, 0.0); 5000], ..d() }),
        ("number of stop strings", SamplingParams { stop: vec!["x".into(); 65], ..d() }),
        ("stop", SamplingParams { stop: vec![String::new()], ..d() }),
        ("bytes of a stop string", SamplingParams { stop: vec!["x".repeat(5000)], ..d() }),
        ("number of stop_token_ids", SamplingParams { stop_token_ids: vec![0; 5000], ..d() }),
        ("logprobs", SamplingParams { logprobs: Some(21), ..d() }),
        ("prompt_logprobs", SamplingParams { prompt_logprobs: Some(21), ..d() }),
    ];
    for (name, params) in cases {
        assert_eq!(names(params.validate()), name);
    }
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
