use rocmforge_testdata::field_names;

use super::SamplingParams;
use crate::Error;

#[test]
fn sampling_params_list_their_field_names() {
    assert_eq!(field_names(&SamplingParams::DEFAULT), SamplingParams::FIELDS);
}

#[test]
fn the_default_is_valid() {
    SamplingParams::default().validate().unwrap();
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
        let refused = params.validate();
        assert!(matches!(&refused, Err(Error::InvalidRequest { what, .. }) if *what == name), "{name}: {refused:?}");
    }
}
