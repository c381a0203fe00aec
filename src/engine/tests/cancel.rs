use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::support::*;
use crate::config::{EngineConfig, SamplingParams};
use crate::engine::{ChannelSink, FinishReason, NewRequest, Prompt};

const PROMPT: [u32; 5] = [9, 8, 7, 6, 5];

/// K2, S16: cancelled while the device computes its step.
#[test]
fn test_concurrent_cancel_during_forward_pass() {
    let rig = Rig::new();
    for running_steps in 0..4 {
        rig.script.close_gate();
        let victim = Draft { name: Some("victim".into()), ..request(&PROMPT, greedy(40)) };
        let victim = submit(&rig.engine, victim).unwrap();
        rig.script.wait_at_gate();
        for _ in 0..running_steps {
            rig.script.let_one_pass();
            victim.next_tokens();
            rig.script.wait_at_gate();
        }
        let cancelled: Vec<bool> = std::thread::scope(|scope| {
            let abort = || rig.engine.abort("victim").unwrap();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(abort)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(cancelled, [true; 4]);
        rig.script.open_gate();
        assert_eq!(victim.wait()[&0].reason, Some(FinishReason::Abort));
        assert!(!rig.engine.abort("victim").unwrap());
        assert_nothing_left(&rig.engine);
    }
}

/// K2: cancelled while it waits: it never runs.
#[test]
fn test_kv_cache_cleanup_on_cancellation() {
    let rig = Rig::with(EngineConfig { max_num_seqs: 1, ..config() }, super::fake::hashed(VOCAB), None);
    rig.script.close_gate();
    let running = rig.submit(&PROMPT, greedy(4));
    let waiting = rig.submit(&[1; 20], greedy(4));
    rig.script.wait_at_gate();
    rig.engine.abort_id(waiting.accepted.id).unwrap();
    rig.script.open_gate();
    assert_eq!(waiting.wait()[&0].reason, Some(FinishReason::Abort));
    assert_eq!(running.wait()[&0].tokens.len(), 4);
    assert_eq!(rig.script.tokens_computed.load(Ordering::SeqCst), 5 + 3);
    assert_eq!(rig.engine.stats().num_finished_abort, 1);
    assert_nothing_left(&rig.engine);
}

/// S16: cancelled between being accepted and being seen by the engine, and after its end.
#[test]
fn cancelled_at_once_and_too_late() {
    let rig = Rig::new();
    for _ in 0..50 {
        let client = rig.submit(&PROMPT, greedy(3));
        let id = client.accepted.id;
        rig.engine.abort_id(id).unwrap();
        let done = client.wait();
        assert!(matches!(done[&0].reason, Some(FinishReason::Abort | FinishReason::Length)));
        rig.engine.abort_id(id).unwrap();
        assert_nothing_left(&rig.engine);
    }
}

/// S20, K2: a consumer that is gone (its receiver dropped) frees its blocks; all its requests end, no other does.
#[test]
fn a_consumer_that_is_gone_frees_its_blocks() {
    let rig = Rig::new();
    rig.script.close_gate();
    let (sink, outputs) = ChannelSink::new();
    for i in 0..3 {
        let sink = Arc::clone(&sink);
        let prompt = Prompt::TokenIds(vec![i; 7]);
        let params = greedy(1000);
        rig.engine
            .add_request(NewRequest { name: None, prompt, params, priority: 0, timeout: None, cache_salt: None, sink })
            .unwrap();
    }
    let other = rig.submit(&PROMPT, greedy(50));
    rig.script.wait_at_gate();
    drop(outputs);
    rig.script.open_gate();
    let done = other.wait();
    assert_eq!(done[&0].tokens, alone(&rig.rule, &PROMPT, &greedy(50), 0, 0));
    while rig.engine.stats().num_finished_abort + rig.engine.stats().num_finished_length < 4 {
        std::thread::yield_now();
    }
    assert_nothing_left(&rig.engine);
    assert_eq!(Arc::strong_count(&sink), 1);
}

/// K2: cancelling a request with several sequences ends each of them, before and after they fork.
#[test]
fn cancelling_several_sequences() {
    let rig = Rig::new();
    for after_fork in [false, true] {
        rig.script.close_gate();
        let client = rig.submit(&PROMPT, SamplingParams { n: 4, temperature: 2.0, ..greedy(40) });
        rig.script.wait_at_gate();
        if after_fork {
            rig.script.let_one_pass();
            client.next_tokens();
            rig.script.wait_at_gate();
        }
        rig.engine.abort_id(client.accepted.id).unwrap();
        rig.script.open_gate();
        for (_, one) in client.wait() {
            assert_eq!(one.reason, Some(FinishReason::Abort));
        }
        assert_nothing_left(&rig.engine);
    }
}
