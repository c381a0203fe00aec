use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::{EngineConfig, SamplingParams};
use crate::tests::support::*;
use crate::{ChannelSink, FinishReason};

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
        // Exactly one call aborted the request. Afterwards the name is unknown.
        assert_eq!(cancelled.iter().filter(|&&done| done).count(), 1);
        rig.script.open_gate();
        assert_eq!(victim.wait()[&0].reason, Some(FinishReason::Abort));
        assert!(!rig.engine.abort("victim").unwrap());
        assert_nothing_left(&rig.engine);
    }
}

/// K2: a request that is cancelled while it waits never runs.
#[test]
fn test_kv_cache_cleanup_on_cancellation() {
    let rig = Rig::with(EngineConfig { max_num_seqs: 1, ..config() }, crate::tests::fake::hashed(VOCAB), None);
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

/// S16: a request can be cancelled before the engine thread sees it, and after its end.
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

/// S20, K2: a consumer whose receiver was dropped frees its blocks. All its requests end, and no others.
#[test]
fn a_consumer_that_is_gone_frees_its_blocks() {
    let rig = Rig::new();
    rig.script.close_gate();
    let (sink, outputs) = ChannelSink::new();
    for i in 0..3 {
        let sink = Arc::clone(&sink);
        rig.engine.add_request(request(&[i; 7], greedy(1000)).with_sink(sink), |_| {}).unwrap();
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

/// S20: every abort of a live request is measured until its blocks are free, whatever the request was doing.
#[test]
fn aborts_are_measured_until_their_blocks_are_free() {
    for synchronous in [false, true] {
        let rig = Rig::with(EngineConfig { max_num_seqs: 1, ..config() }, crate::tests::fake::hashed(VOCAB), None);
        rig.script.synchronous.store(synchronous, Ordering::SeqCst);
        for num_aborts in (2..=20).step_by(2) {
            rig.script.close_gate();
            let running = rig.submit(&PROMPT, greedy(40));
            let waiting = rig.submit(&[1; 20], greedy(4));
            rig.script.wait_at_gate();
            rig.engine.abort_id(running.accepted.id).unwrap();
            rig.engine.abort_id(waiting.accepted.id).unwrap();
            rig.script.open_gate();
            let ended = running.accepted.id;
            running.wait();
            waiting.wait();
            // A request that has ended has nothing to free.
            rig.engine.abort_id(ended).unwrap();
            assert_nothing_left(&rig.engine);
            assert_eq!(rig.engine.stats().cancel_to_free.counts.iter().sum::<u64>(), num_aborts);
        }
    }
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

/// A3: the name of an aborted request is free at once, while its step still runs. A late end does not take the name
/// from the request that uses it by then.
#[test]
fn an_aborted_requests_name_is_free_at_once() {
    let rig = Rig::new();
    let named =
        |token: u32, max_tokens| Draft { name: Some("mine".into()), ..request(&[token; 5], greedy(max_tokens)) };
    for by_id in [false, true] {
        rig.script.close_gate();
        let first = submit(&rig.engine, named(1, 40)).unwrap();
        rig.script.wait_at_gate();
        match by_id {
            false => assert!(rig.engine.abort("mine").unwrap()),
            true => rig.engine.abort_id(first.accepted.id).unwrap(),
        }
        let second = submit(&rig.engine, named(2, 4)).unwrap();
        assert!(submit(&rig.engine, named(3, 4)).is_err());
        // The first request no longer has a name, and aborting its id has no effect.
        rig.engine.abort_id(first.accepted.id).unwrap();
        rig.script.open_gate();
        assert_eq!(first.wait()[&0].reason, Some(FinishReason::Abort));
        assert_eq!(second.wait()[&0].tokens, alone(&rig.rule, &[2; 5], &greedy(4), 0, 0));
        assert_eq!(rig.engine.record("mine").unwrap().finish_reason, FinishReason::Length);
        assert!(!rig.engine.abort("mine").unwrap());
        assert_nothing_left(&rig.engine);
    }
    // The first request is retired while the second still exists.
    rig.script.close_gate();
    let first = submit(&rig.engine, named(1, 40)).unwrap();
    rig.script.wait_at_gate();
    assert!(rig.engine.abort("mine").unwrap());
    let second = submit(&rig.engine, named(2, 40)).unwrap();
    // Let one step of the first and one of the second request pass.
    rig.script.let_one_pass();
    rig.script.let_one_pass();
    assert_eq!(first.wait()[&0].reason, Some(FinishReason::Abort));
    assert!(submit(&rig.engine, named(3, 4)).is_err());
    assert!(rig.engine.abort("mine").unwrap());
    rig.script.open_gate();
    assert_eq!(second.wait()[&0].reason, Some(FinishReason::Abort));
    assert_nothing_left(&rig.engine);
}

/// A11: dropping the pending logits of a prompt ends its request, so no further piece is computed.
#[test]
fn logits_that_nobody_waits_for() {
    let rig = Rig::new();
    rig.script.synchronous.store(true, Ordering::SeqCst);
    rig.script.close_gate();
    // The prompt takes three steps of at most 24 tokens.
    let pending = rig.engine.start_prompt_logits(vec![1; 60]).unwrap();
    rig.script.wait_at_gate();
    rig.script.let_one_pass();
    rig.script.wait_at_gate();
    drop(pending);
    rig.script.open_gate();
    assert_eq!(rig.run(&PROMPT, greedy(1))[&0].tokens.len(), 1);
    assert_eq!(rig.script.tokens_computed.load(Ordering::SeqCst), 2 * 24 + 5);
    assert_nothing_left(&rig.engine);
}
