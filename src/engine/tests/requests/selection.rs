//! Tests with an executor that returns exactly the requested part of each row of logits.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::Error;
use crate::FinishReason;
use crate::config::SamplingParams;
use crate::tests::fake::{Fault, Rule, hashed};
use crate::tests::support::*;

/// More than the candidates that a step returns, and so flat that these do not always include the token.
const LARGE: usize = 1000;
const PROMPT: [u32; 5] = [500, 3, 77, 12, 999];

fn rig(rule: Rule) -> Rig {
    let rig = Rig::with(config(), rule, None);
    rig.script.selects.store(true, SeqCst);
    rig
}

/// Two texts that begin with the same row. The device draws only for the first, so the row has to be read.
fn of_one_row() -> SamplingParams {
    SamplingParams { max_tokens: 50, n: 2, ..Default::default() }
}

fn seeded(params: SamplingParams) -> SamplingParams {
    SamplingParams { max_tokens: 30, seed: Some(8), ..params }
}

fn assert_as_if_alone(rig: &Rig, client: Client, params: &SamplingParams) {
    for (index, one) in client.wait() {
        let expected = alone(&rig.rule, &PROMPT, &SamplingParams { n: 1, ..params.clone() }, index as u32, 8);
        assert_eq!(one.tokens, expected, "sequence {index} of {params:?}");
    }
}

/// S14, G26: requests of every kind in one batch, each with the tokens that whole rows give.
#[test]
fn every_kind_of_request_in_one_batch() {
    let rig = rig(hashed(LARGE));
    let kinds: Vec<SamplingParams> = [
        greedy(30),
        SamplingParams { logprobs: Some(3), ..greedy(30) },
        SamplingParams { top_k: 7, n: 3, ..Default::default() },
        SamplingParams { top_p: 0.3, logprobs: Some(2), ..Default::default() },
        SamplingParams { n: 2, ..Default::default() },
        SamplingParams { min_p: 0.5, temperature: 0.7, ..Default::default() },
        SamplingParams { presence_penalty: 1.0, ..greedy(30) },
        SamplingParams { repetition_penalty: 1.3, top_k: 20, logprobs: Some(2), n: 2, ..Default::default() },
        SamplingParams { frequency_penalty: 0.4, logit_bias: vec![(7, 3.0), (500, -2.0)], ..Default::default() },
        SamplingParams { prompt_logprobs: Some(1), ..Default::default() },
        SamplingParams { min_tokens: 10, stop_token_ids: vec![4, 5], ..greedy(30) },
    ]
    .into_iter()
    .map(seeded)
    .collect();
    let clients: Vec<_> = kinds.iter().map(|params| rig.submit(&PROMPT, params.clone())).collect();
    for (client, params) in clients.into_iter().zip(&kinds) {
        assert_as_if_alone(&rig, client, params);
    }
    assert!(rig.engine.stats().logits_rows_fetched > 0, "no fork read the row that it begins with");
    assert_eq!(prompt_logits(&rig.engine, PROMPT.to_vec()).unwrap().len(), PROMPT.len() * LARGE);
    assert_nothing_left(&rig.engine);
}

/// G26: if the best tokens are enough, no row leaves the device.
#[test]
fn no_row_is_read_that_is_not_needed() {
    let rig = rig(hashed(LARGE));
    for params in [
        greedy(30),
        SamplingParams { logprobs: Some(20), ..greedy(30) },
        SamplingParams { top_k: 40, top_p: 0.8, n: 2, ..Default::default() },
        SamplingParams { top_k: 300, top_p: 0.9, logprobs: Some(1), ..Default::default() },
        SamplingParams { min_p: 0.6, temperature: 1.5, ..Default::default() },
        SamplingParams { temperature: 1.5, logprobs: Some(0), ..Default::default() },
        SamplingParams { top_p: 0.95, repetition_penalty: 1.1, ..Default::default() },
        SamplingParams { repetition_penalty: 1.1, ..greedy(30) },
        SamplingParams { presence_penalty: 0.7, frequency_penalty: -0.2, logprobs: Some(3), ..greedy(30) },
        SamplingParams { repetition_penalty: 1.4, top_k: 30, logit_bias: vec![(3, 5.0)], ..Default::default() },
        SamplingParams { min_tokens: 4, stop_token_ids: vec![9], ..greedy(30) },
    ] {
        let params = seeded(params);
        assert_as_if_alone(&rig, rig.submit(&PROMPT, params.clone()), &params);
    }
    assert_eq!(rig.script.rows_wanted.load(SeqCst), 0);
    assert_eq!(rig.engine.stats().logits_rows_fetched, 0);
    assert_nothing_left(&rig.engine);
}

/// S11: a row with a NaN, and a row that cannot be fetched, end only their own request.
#[test]
fn broken_rows() {
    let plain = hashed(LARGE);
    let broken: Rule = Arc::new(move |content| {
        let mut row = plain(content);
        row[17] = if content[0] == 666 { f32::NAN } else { row[17] };
        row
    });
    let rig = rig(broken);
    let good = rig.submit(&PROMPT, seeded(greedy(30)));
    for params in [greedy(5), SamplingParams::default()] {
        let one = rig.submit(&[666, 1], params).wait()[&0].clone();
        assert_eq!(one.reason, Some(FinishReason::Error));
        assert!(matches!(one.error, Some(Error::StepFailed { problem }) if problem.contains("not a number")));
    }
    *rig.script.fetch_fault.lock() = Some(Fault::Error);
    let one = rig.submit(&PROMPT, of_one_row()).wait()[&0].clone();
    assert!(matches!(one.error, Some(Error::StepFailed { problem }) if problem.contains("scripted")));
    assert_as_if_alone(&rig, good, &seeded(greedy(30)));
    assert_nothing_left(&rig.engine);
}

/// A device that is lost while a row is fetched is lost for all requests.
#[test]
fn a_device_lost_in_a_fetch() {
    let rig = rig(hashed(LARGE));
    *rig.script.fetch_fault.lock() = Some(Fault::Dead);
    let one = rig.submit(&PROMPT, of_one_row()).wait()[&0].clone();
    assert!(matches!(one.error, Some(Error::EngineDead { .. })));
    assert!(matches!(prompt_logits(&rig.engine, vec![1]), Err(Error::EngineDead { .. })));
    assert_nothing_left(&rig.engine);
}
