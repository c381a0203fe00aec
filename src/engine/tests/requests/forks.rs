use crate::FinishReason;
use crate::config::{EngineConfig, SamplingParams};
use crate::tests::fake::hashed;
use crate::tests::support::*;

const PROMPT: [u32; 9] = [9, 8, 7, 6, 5, 4, 3, 2, 1];

fn sampled(n: usize, max_tokens: usize) -> SamplingParams {
    SamplingParams { n, max_tokens, temperature: 1.3, seed: Some(77), ..Default::default() }
}

/// K20, K22: each of n sequences equals a single one with its own random stream. Forks share the prompt's blocks, and
/// copy the one that they write to.
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

/// Sequences end one by one, and the request ends with the last of them.
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

/// All sequences end with their first token, so they fork and end in one step.
#[test]
fn forks_that_end_at_once() {
    let rig = Rig::new();
    let done = rig.run(&PROMPT, sampled(5, 1));
    assert!(done.values().all(|one| one.tokens.len() == 1 && one.reason == Some(FinishReason::Length)));
    assert_nothing_left(&rig.engine);
}

/// S12: forks continue exactly in a pool so small that they are preempted all the time.
#[test]
fn preempted_forks_go_on_exactly() {
    let rig = Rig::with(EngineConfig { kv_groups: blocks(14), ..config() }, hashed(VOCAB), None);
    let clients: Vec<_> = (0..6).map(|i| rig.submit(&PROMPT[i..], sampled(3, 25))).collect();
    for (i, client) in clients.into_iter().enumerate() {
        for (index, one) in client.wait() {
            assert_eq!(one.tokens, alone(&rig.rule, &PROMPT[i..], &sampled(1, 25), index as u32, 77));
        }
    }
    assert!(rig.engine.stats().num_preemptions > 0);
    assert_nothing_left(&rig.engine);
}

/// A6: sequences without a slot at the fork start later, and get the same tokens as alone. More sequences than can run
/// at once are served like that.
#[test]
fn sequences_without_a_place_start_later() {
    let rig = Rig::with(EngineConfig { max_num_seqs: 3, ..config() }, hashed(VOCAB), None);
    let others: Vec<_> = (0..3).map(|i| rig.submit(&[i, i + 1], greedy(15))).collect();
    let done = rig.run(&PROMPT, sampled(11, 12));
    assert_eq!(done.len(), 11);
    for (index, one) in &done {
        assert_eq!(one.tokens, alone(&rig.rule, &PROMPT, &sampled(1, 12), *index as u32, 77), "sequence {index}");
    }
    others.into_iter().for_each(|client| drop(client.wait()));
    let stats = rig.engine.stats();
    assert_eq!(stats.generated_tokens, 3 * 15 + 11 * 12);
    assert_eq!((stats.prompt_tokens, stats.num_finished_length), (3 * 2 + 9, 4));
    assert_nothing_left(&rig.engine);
}

/// A6: requests after one with many sequences need not wait until all of these have a slot.
#[test]
fn many_sequences_hold_nobody_up() {
    let rig = Rig::with(EngineConfig { max_num_seqs: 4, ..config() }, hashed(VOCAB), None);
    rig.script.close_gate();
    let long = rig.submit(&[1, 2], greedy(50));
    rig.script.wait_at_gate();
    let many = rig.submit(&PROMPT, sampled(4, 5));
    let short = rig.submit(&[7, 7], greedy(1));
    for _ in 0..4 {
        rig.script.let_one_pass();
        rig.script.wait_at_gate();
    }
    assert_eq!(short.wait()[&0].tokens.len(), 1, "it ended while the long one ran");
    rig.script.open_gate();
    assert_eq!(many.wait().len(), 4);
    assert_eq!(long.wait()[&0].tokens.len(), 50);
    assert_nothing_left(&rig.engine);
}

/// A6: the end of a request ends its sequences that wait for a slot.
#[test]
fn sequences_without_a_place_end_with_their_request() {
    let rig = Rig::with(EngineConfig { max_num_seqs: 2, ..config() }, hashed(VOCAB), None);
    rig.script.close_gate();
    let client = rig.submit(&PROMPT, SamplingParams { ignore_eos: true, ..sampled(9, 50) });
    rig.script.wait_at_gate();
    for _ in 0..4 {
        rig.script.let_one_pass();
        rig.script.wait_at_gate();
    }
    let stats = rig.engine.stats();
    assert_eq!((stats.num_running, stats.num_waiting), (2, 7));
    rig.engine.abort_id(client.accepted.id).unwrap();
    rig.script.open_gate();
    let done = client.wait();
    assert!(done.values().all(|one| one.reason == Some(FinishReason::Abort)), "{done:?}");
    assert!(done.values().all(|one| !one.tokens.is_empty()), "each had its first token at the fork");
    assert_nothing_left(&rig.engine);
}

/// A4: the preemptions of all requests add up to the engine's count.
#[test]
fn preemptions_of_requests_add_up() {
    let config =
        EngineConfig { kv_groups: blocks(14), max_num_batched_tokens: 8, enable_prefix_caching: false, ..config() };
    let rig = Rig::with(config, hashed(VOCAB), None);
    let requests = (0..8).map(|i| (rig.submit(&[i; 20], sampled(3, 20)), rig.submit(&[i; 3], greedy(30))));
    let clients: Vec<_> = requests.flat_map(|(many, one)| [many, one]).collect();
    let of_requests = clients.into_iter().map(|client| {
        let done = client.wait();
        let counts = done.values().filter_map(|one| one.last.as_ref()).map(|last| last.metrics.num_preemptions);
        counts.max().unwrap() as u64
    });
    let of_requests: u64 = of_requests.sum();
    assert!(of_requests > 0);
    assert_eq!(of_requests, rig.engine.stats().num_preemptions);
    assert_nothing_left(&rig.engine);
}
