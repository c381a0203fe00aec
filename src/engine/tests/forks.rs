use super::fake::hashed;
use super::support::*;
use crate::config::{EngineConfig, SamplingParams};
use crate::engine::FinishReason;

const PROMPT: [u32; 9] = [9, 8, 7, 6, 5, 4, 3, 2, 1];

fn sampled(n: usize, max_tokens: usize) -> SamplingParams {
    SamplingParams { n, max_tokens, temperature: 1.3, seed: Some(77), ..Default::default() }
}

/// K20, K22: each of n sequences is what it would be alone with its own random stream: forks share the prompt's
/// blocks, and copy the one that they write into.
#[test]
fn every_sequence_is_as_if_alone() {
    let rig = Rig::new();
    for prompt_len in [1, 3, 4, 5, 9] {
        let prompt = &PROMPT[..prompt_len];
        let done = rig.run(prompt, sampled(4, 20));
        for (index, one) in &done {
            let expected = alone(&rig.rule, prompt, &sampled(1, 20), *index as u32, 77);
            assert_eq!(one.tokens, expected, "sequence {index} of a prompt of {prompt_len}");
        }
        assert_ne!(done[&0].tokens, done[&1].tokens);
        assert_nothing_left(&rig.engine);
    }
}

/// The prompt is computed once for all of them.
#[test]
fn forks_share_the_prompt() {
    let rig = Rig::new();
    rig.run(&PROMPT, sampled(4, 5));
    let computed = rig.script.tokens_computed.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(computed, PROMPT.len() as u64 + 4 * 4);
}

/// Sequences end by themselves, the request with the last of them.
#[test]
fn sequences_end_one_by_one() {
    let rig = Rig::new();
    let params = SamplingParams { stop_token_ids: (0..12).collect(), ..sampled(6, 30) };
    let done = rig.run(&PROMPT, params.clone());
    for (index, one) in &done {
        let expected = alone(&rig.rule, &PROMPT, &SamplingParams { n: 1, ..params.clone() }, *index as u32, 77);
        assert_eq!(one.tokens, expected);
        let stopped = expected.last().is_some_and(|token| *token < 12);
        assert_eq!(one.reason, Some(if stopped { FinishReason::Stop } else { FinishReason::Length }));
    }
    let lengths: std::collections::BTreeSet<usize> = done.values().map(|one| one.tokens.len()).collect();
    assert!(lengths.len() > 2, "they all ended together: {lengths:?}");
    assert_eq!(rig.engine.stats().num_finished_stop + rig.engine.stats().num_finished_length, 1);
    assert_nothing_left(&rig.engine);
}

/// All of them end with their first token: forked and ended in one step.
#[test]
fn forks_that_end_at_once() {
    let rig = Rig::new();
    let done = rig.run(&PROMPT, sampled(5, 1));
    assert!(done.values().all(|one| one.tokens.len() == 1 && one.reason == Some(FinishReason::Length)));
    assert_nothing_left(&rig.engine);
}

/// S12: forks under a pool so small that they are preempted all the time.
#[test]
fn preempted_forks_go_on_exactly() {
    let rig = Rig::with(EngineConfig { num_blocks: 14, ..config() }, hashed(VOCAB), None);
    let clients: Vec<_> = (0..6).map(|i| rig.submit(&PROMPT[i..], sampled(3, 25))).collect();
    for (i, client) in clients.into_iter().enumerate() {
        for (index, one) in client.wait() {
            assert_eq!(one.tokens, alone(&rig.rule, &PROMPT[i..], &sampled(1, 25), index as u32, 77));
        }
    }
    assert!(rig.engine.stats().num_preemptions > 0);
    assert_nothing_left(&rig.engine);
}
