//! Steps that are launched before their first tokens are known; the device fills these in.

use std::sync::atomic::Ordering;

use crate::FinishReason;
use crate::config::SamplingParams;
use crate::tests::support::*;

const PROMPT: [u32; 5] = [9, 8, 7, 6, 5];

/// Greedy sequences get the tokens that they get alone, whether the device waits for the host or not. The device does
/// not wait while it picks all tokens.
#[test]
fn tokens_are_those_of_steps_that_wait() {
    let prompts: Vec<Vec<u32>> = (1..7).map(|i| (0..i).map(|j| 7 * i + j).collect()).collect();
    for synchronous in [true, false] {
        let rig = Rig::new();
        rig.script.synchronous.store(synchronous, Ordering::SeqCst);
        let clients: Vec<_> = (0..).zip(&prompts).map(|(i, prompt)| rig.submit(prompt, greedy(20 + 3 * i))).collect();
        for ((i, prompt), client) in (0..).zip(&prompts).zip(clients) {
            let expected = alone(&rig.rule, prompt, &greedy(20 + 3 * i), 0, 0);
            assert_eq!(client.wait()[&0].tokens, expected, "prompt {i}");
        }
        let fed = rig.script.fed.load(Ordering::SeqCst);
        assert_eq!(fed > 10, !synchronous, "{fed} steps were launched ahead");
        assert_nothing_left(&rig.engine);
    }
}

/// A token that ends its sequence is known one step late. The tokens that the device computed after it are not part of
/// the output, and its blocks are freed.
#[test]
fn an_end_is_exact_although_the_next_step_runs() {
    let rig = Rig::new();
    let tokens = alone(&rig.rule, &PROMPT, &greedy(12), 0, 0);
    for stop in tokens[1..].iter().copied() {
        let length = tokens.iter().position(|&token| token == stop).unwrap() + 1;
        let beside = rig.submit(&[1, 2, 3], greedy(16));
        let done = rig.run(&PROMPT, SamplingParams { stop_token_ids: vec![stop], ..greedy(12) });
        assert_eq!(done[&0].tokens, tokens[..length]);
        assert_eq!(done[&0].reason, Some(FinishReason::Stop));
        assert_eq!(beside.wait()[&0].tokens, alone(&rig.rule, &[1, 2, 3], &greedy(16), 0, 0));
        assert_nothing_left(&rig.engine);
    }
    assert!(rig.script.fed.load(Ordering::SeqCst) > 0);
}

/// A request is cancelled while one of its steps runs and another is queued; its blocks are freed after both.
#[test]
fn a_cancel_behind_two_steps() {
    let rig = Rig::new();
    for _ in 0..20 {
        rig.script.close_gate();
        let beside = rig.submit(&[4, 5], greedy(12));
        let victim = rig.submit(&PROMPT, greedy(40));
        for _ in 0..4 {
            rig.script.wait_at_gate();
            rig.script.let_one_pass();
        }
        rig.script.wait_at_gate();
        rig.engine.abort_id(victim.accepted.id).unwrap();
        rig.script.open_gate();
        assert_eq!(victim.wait()[&0].reason, Some(FinishReason::Abort));
        assert_eq!(beside.wait()[&0].tokens, alone(&rig.rule, &[4, 5], &greedy(12), 0, 0));
        assert_nothing_left(&rig.engine);
    }
}

/// Rows that the host must read or has constraints for make the device wait; no step is launched after them.
#[test]
fn rows_that_are_read_are_not_overtaken() {
    let sampled = SamplingParams { temperature: 0.8, seed: Some(3), ..greedy(10) };
    let penalised = SamplingParams { repetition_penalty: 1.3, ..greedy(10) };
    let [listed, own] = [2, 0].map(|top| SamplingParams { logprobs: Some(top), ..greedy(10) });
    for params in [sampled, penalised, listed, own] {
        let rig = Rig::new();
        rig.script.selects.store(true, Ordering::SeqCst);
        let beside = rig.submit(&PROMPT, params.clone());
        let done = rig.run(&[3, 1], params.clone());
        assert_eq!(done[&0].tokens.len(), 10);
        assert_eq!(beside.wait()[&0].tokens.len(), 10);
        assert_eq!(rig.script.fed.load(Ordering::SeqCst), 0, "{params:?}");
        assert_nothing_left(&rig.engine);
    }
}
