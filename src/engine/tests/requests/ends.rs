//! Every way in which a request can end, one by one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::backend::MemoryLedger;
use crate::config::SamplingParams;
use crate::tests::fake::{Fault, hashed, listed};
use crate::tests::support::*;
use crate::{Engine, FinishReason, StopReason};
use crate::{Error, RequestId};

const PROMPT: [u32; 5] = [9, 8, 7, 6, 5];

/// S9, S10: a request alone gets all its tokens, without another one to trigger its steps.
#[test]
fn one_request_gets_all_its_tokens() {
    let rig = Rig::new();
    let done = rig.run(&PROMPT, greedy(50));
    assert_eq!(done[&0].tokens, alone(&rig.rule, &PROMPT, &greedy(50), 0, 0));
    assert_eq!(done[&0].tokens.len(), 50);
    assert_eq!(done[&0].reason, Some(FinishReason::Length));
    assert_nothing_left(&rig.engine);
}

/// S7: a caller that starts to wait after the end gets everything at once.
#[test]
fn waiting_after_the_end() {
    let rig = Rig::new();
    let client = rig.submit(&PROMPT, greedy(5));
    while rig.engine.stats().num_finished_length == 0 {
        std::thread::yield_now();
    }
    assert_eq!(client.wait()[&0].tokens, alone(&rig.rule, &PROMPT, &greedy(5), 0, 0));
}

/// S18, K2: generation ends at the model's length, whatever `max_tokens` is.
#[test]
fn the_models_length_ends_a_request() {
    let rig = Rig::new();
    let done = rig.run(&PROMPT, greedy(1000));
    assert_eq!(done[&0].tokens.len(), 64 - PROMPT.len());
    assert_eq!(done[&0].reason, Some(FinishReason::Length));
    assert_nothing_left(&rig.engine);
}

/// S15, K2: the model's end token at step k ends at k.
#[test]
fn the_end_token_ends_a_request() {
    let tokenizer = tokenizer(&[]);
    for k in [0, 1, 7] {
        let mut tokens = vec![letter('x'); k];
        tokens.push(EOS);
        let rule = listed(tokenizer.vocab_size(), PROMPT.len(), tokens.clone());
        let rig = Rig::with(config(), rule, Some(Arc::clone(&tokenizer)));
        let done = rig.run(&PROMPT, greedy(50));
        assert_eq!(done[&0].tokens, tokens);
        assert_eq!((done[&0].reason, done[&0].stop.clone()), (Some(FinishReason::Stop), None));
        assert_eq!(done[&0].text, "x".repeat(k));
        let ignoring = rig.run(&PROMPT, SamplingParams { ignore_eos: true, ..greedy(12) });
        assert_eq!(ignoring[&0].tokens.len(), 12);
        assert_nothing_left(&rig.engine);
    }
}

/// S15, K2: a stop token ends a request, and is named.
#[test]
fn a_stop_token_ends_a_request() {
    let rig = Rig::with(config(), listed(VOCAB, PROMPT.len(), vec![3, 4, 11, 4, 4]), None);
    let done = rig.run(&PROMPT, SamplingParams { stop_token_ids: vec![40, 11], ..greedy(50) });
    assert_eq!(done[&0].tokens, [3, 4, 11]);
    assert_eq!((done[&0].reason, done[&0].stop.clone()), (Some(FinishReason::Stop), Some(StopReason::Token(11))));
    assert_nothing_left(&rig.engine);
}

/// K2, S15: a stop string ends a request.
#[test]
fn a_stop_string_ends_a_request() {
    let tokenizer = tokenizer(&["stopping"]);
    let tokens = vec![letter('a'), letter('b'), word(0), letter('c')];
    let rig = Rig::with(config(), listed(tokenizer.vocab_size(), PROMPT.len(), tokens), Some(tokenizer));
    let done = rig.run(&PROMPT, SamplingParams { stop: vec!["bst".into()], ..greedy(50) });
    assert_eq!(done[&0].text, "a");
    assert_eq!(done[&0].tokens, [letter('a'), letter('b'), word(0)]);
    assert_eq!(done[&0].stop, Some(StopReason::String("bst".into())));
    assert_eq!(done[&0].reason, Some(FinishReason::Stop));
    assert_nothing_left(&rig.engine);
}

/// S6: a request whose deadline passes while it waits never runs.
#[test]
fn a_deadline_in_the_queue() {
    let rig = Rig::new();
    rig.script.close_gate();
    let running = rig.submit(&PROMPT, greedy(3));
    rig.script.wait_at_gate();
    let late = Draft { timeout: Some(Duration::ZERO), ..request(&[1, 2, 3], greedy(3)) };
    let late = submit(&rig.engine, late).unwrap();
    rig.script.open_gate();
    let done = late.wait();
    assert_eq!(done[&0].reason, Some(FinishReason::Timeout));
    assert!(done[&0].tokens.is_empty());
    assert_eq!(running.wait()[&0].tokens.len(), 3);
    assert_eq!(rig.script.tokens_computed.load(Ordering::SeqCst), PROMPT.len() as u64 + 2);
    assert_nothing_left(&rig.engine);
}

/// K2, S6: a request ends if its deadline passes while it runs.
#[test]
fn a_deadline_while_running() {
    let rig = Rig::new();
    rig.script.close_gate();
    let timeout = Duration::from_millis(20);
    let submitted = Instant::now();
    let client = submit(&rig.engine, Draft { timeout: Some(timeout), ..request(&PROMPT, greedy(1000)) }).unwrap();
    rig.script.wait_at_gate();
    while submitted.elapsed() < 2 * timeout {
        std::thread::park_timeout(timeout);
    }
    rig.script.open_gate();
    let done = client.wait();
    assert_eq!(done[&0].reason, Some(FinishReason::Timeout));
    // The step in progress at that time counts.
    assert_eq!(done[&0].tokens, alone(&rig.rule, &PROMPT, &greedy(1), 0, 0));
    assert_nothing_left(&rig.engine);
}

/// K2, S11, S24: a step that fails or panics ends its requests with the cause, and the engine continues.
#[test]
fn a_failed_step_ends_its_requests() {
    for fault in [Fault::Error, Fault::Panic, Fault::WrongShape] {
        for step in [0, 3] {
            let rig = Rig::new();
            rig.script.fault(step, fault);
            let done = rig.run(&PROMPT, greedy(10));
            assert_eq!(done[&0].reason, Some(FinishReason::Error), "{fault:?}");
            assert!(matches!(done[&0].error, Some(Error::StepFailed { .. })), "{fault:?}");
            let expected = alone(&rig.rule, &PROMPT, &greedy(10), 0, 0);
            assert_eq!(done[&0].tokens, expected[..step as usize]);
            assert_nothing_left(&rig.engine);
            assert_eq!(rig.run(&PROMPT, greedy(10))[&0].tokens, expected);
            assert_nothing_left(&rig.engine);
        }
    }
}

/// K2: logits that are not finite end only their own request, and a later prompt finds none of its blocks.
#[test]
fn broken_logits_end_one_request() {
    let plain = hashed(VOCAB);
    let rule = {
        let plain = Arc::clone(&plain);
        Arc::new(move |content: &[u32]| {
            let mut row = plain(content);
            if content[0] == 63 {
                row[4] = f32::NAN;
            }
            row
        })
    };
    let rig = Rig::with(config(), rule, None);
    rig.script.close_gate();
    let first = rig.submit(&[1], greedy(1));
    rig.script.wait_at_gate();
    let broken = Draft { name: Some("broken one".into()), ..request(&[63; 9], greedy(10)) };
    let broken = submit(&rig.engine, broken).unwrap();
    let good = rig.submit(&PROMPT, greedy(10));
    rig.script.open_gate();
    first.wait();
    let broken = broken.wait();
    assert_eq!(broken[&0].reason, Some(FinishReason::Error));
    let message = broken[&0].error.as_ref().unwrap().to_string();
    assert!(message.contains("broken one") && message.contains("token 4"), "{message}");
    assert_eq!(good.wait()[&0].tokens, alone(&plain, &PROMPT, &greedy(10), 0, 0));
    assert_nothing_left(&rig.engine);
    let hits = rig.engine.stats().kv_cache.prefix_cache_hits;
    assert_eq!(rig.run(&[63; 9], greedy(10))[&0].reason, Some(FinishReason::Error));
    assert_eq!(rig.engine.stats().kv_cache.prefix_cache_hits, hits);
}

/// S4, K2: closing ends all requests as aborted, in any state, and frees the device.
#[test]
fn closing_ends_everything() {
    let rig = Rig::new();
    rig.script.close_gate();
    let clients: Vec<_> = (0..20).map(|i| rig.submit(&[i; 9], greedy(40))).collect();
    rig.script.wait_at_gate();
    let closer = rig.engine.clone();
    let closing = std::thread::spawn(move || closer.close());
    while !rig.engine.is_closed() {
        std::thread::yield_now();
    }
    assert!(matches!(submit(&rig.engine, request(&PROMPT, greedy(1))), Err(Error::EngineDead { .. })));
    rig.script.open_gate();
    closing.join().unwrap();
    assert!(rig.script.dropped.load(Ordering::SeqCst));
    // One step was in flight and the next prepared; no other began.
    assert!(rig.script.steps.load(Ordering::SeqCst) <= 2);
    for client in clients {
        assert_eq!(client.wait()[&0].reason, Some(FinishReason::Abort));
    }
    assert_nothing_left(&rig.engine);
    assert_eq!(rig.engine.stats().num_finished_abort, 20);
    assert_eq!(rig.engine.memory(), MemoryLedger::default());
    rig.engine.close();
    assert!(matches!(rig.engine.abort_id(RequestId(1)), Err(Error::EngineDead { .. })));
    assert!(matches!(rig.engine.reset_prefix_cache(), Err(Error::EngineDead { .. })));
    assert!(matches!(prompt_logits(&rig.engine, vec![1]), Err(Error::EngineDead { .. })));
}

/// S4: dropping the last handle shuts down, and not before.
#[test]
fn dropping_the_last_handle_closes() {
    let Rig { engine, script, .. } = Rig::new();
    let other: Engine = engine.clone();
    drop(engine);
    let client = submit(&other, request(&PROMPT, greedy(3))).unwrap();
    assert_eq!(client.wait()[&0].tokens.len(), 3);
    let client = submit(&other, request(&PROMPT, greedy(1000))).unwrap();
    drop(other);
    assert!(script.dropped.load(Ordering::SeqCst));
    let reason = client.wait()[&0].reason;
    assert!(matches!(reason, Some(FinishReason::Abort | FinishReason::Length)), "{reason:?}");
}
