//! Requests whose masks are late; the steps continue without them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use super::{PROMPT, matching, rig};
use crate::Error;
use crate::FinishReason;
use crate::config::{Constraint, EngineConfig, SamplingParams, StructuredOutputs};
use crate::tests::support::*;

fn params(n: usize, regex: &str) -> SamplingParams {
    let structured_outputs = matching(regex);
    SamplingParams { n, max_tokens: 40, temperature: 1.3, seed: Some(7), structured_outputs, ..Default::default() }
}

/// Uses the lexer of a grammar, as another text's computation ahead does, until the returned sender is dropped.
fn occupy(rig: &Rig, regex: &str) -> (Sender<()>, std::thread::JoinHandle<()>) {
    let grammar = rig.engine.inner.grammars.as_ref().unwrap().compiled(&matching(regex).unwrap()).unwrap();
    let (begun, has_begun) = bounded(0);
    let (release, released) = bounded::<()>(0);
    let thread = std::thread::spawn(move || {
        grammar.turns.alone(|| {
            // A computation that ended before this one was quick.
            grammar.slow.store(true, SeqCst);
            begun.send(()).unwrap();
            // Disconnected when the test releases it.
            let _ = released.recv();
        });
    });
    has_begun.recv().unwrap();
    (release, thread)
}

/// H2: while a grammar is slow, requests next to it get all of their tokens, and its request gets its own afterwards.
#[test]
fn steps_do_not_wait_for_a_grammar() {
    for synchronous in [true, false] {
        let rig = rig(config());
        rig.script.synchronous.store(synchronous, SeqCst);
        let alone = [params(1, "[xy]{20}"), params(3, "[xy]{20}")].map(|params| rig.run(&PROMPT, params));
        let (release, thread) = occupy(&rig, "[xy]{20}");
        let slow = [params(1, "[xy]{20}"), params(3, "[xy]{20}")].map(|params| rig.submit(&PROMPT, params));
        let free = rig.submit(&[4, 5], SamplingParams { ignore_eos: true, ..greedy(40) });
        let guided = rig.submit(&PROMPT, params(2, "[ab]{20}"));
        assert_eq!(free.wait()[&0].tokens.len(), 40);
        assert!(guided.wait().values().all(|one| one.reason == Some(FinishReason::Stop) && one.text.len() == 20));
        for client in &slow {
            assert!(client.outputs.is_empty(), "a token was given before the grammar could take it");
        }
        drop(release);
        for (client, alone) in slow.into_iter().zip(&alone) {
            let done = client.wait();
            assert_eq!(done.len(), alone.len());
            for (index, one) in done {
                assert_eq!(one.tokens, alone[&index].tokens, "sequence {index}");
                assert_eq!(one.reason, Some(FinishReason::Stop));
            }
        }
        thread.join().unwrap();
        assert_nothing_left(&rig.engine);
    }
}

/// H2: texts do not depend on how long their masks take. The sequences fork, have several forced tokens, are preempted
/// or penalized, or have log-probabilities.
#[test]
fn texts_do_not_depend_on_time() {
    let regexes = ["[xy]{20}", "([ab]cddcd){3}"];
    for (synchronous, num_blocks) in [(true, 60), (false, 60), (true, 14), (false, 14)] {
        let rig = rig(EngineConfig { kv_groups: blocks(num_blocks), ..config() });
        rig.script.synchronous.store(synchronous, SeqCst);
        let kinds = || {
            regexes.iter().flat_map(|regex| {
                [
                    params(3, regex),
                    SamplingParams { temperature: 0.0, ..params(1, regex) },
                    SamplingParams { frequency_penalty: 0.7, logprobs: Some(2), ..params(2, regex) },
                    SamplingParams { max_tokens: 7, ..params(1, regex) },
                ]
            })
        };
        let alone: Vec<Finished> = kinds().map(|params| rig.run(&PROMPT, params)).collect();
        let ended = Arc::new(AtomicBool::new(false));
        let disturbers: Vec<_> = regexes
            .iter()
            .map(|regex| {
                let grammar = rig.engine.inner.grammars.as_ref().unwrap().compiled(&matching(regex).unwrap()).unwrap();
                let ended = Arc::clone(&ended);
                std::thread::spawn(move || {
                    while !ended.load(SeqCst) {
                        grammar.turns.alone(|| {
                            grammar.slow.store(true, SeqCst);
                            std::thread::sleep(Duration::from_millis(1));
                        });
                        // The texts need their turn with the lexer, too.
                        std::thread::sleep(Duration::from_millis(1));
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            let clients: Vec<_> = kinds().map(|params| rig.submit(&PROMPT, params)).collect();
            for (client, alone) in clients.into_iter().zip(&alone) {
                for (index, one) in client.wait() {
                    assert_eq!(one.tokens, alone[&index].tokens, "sequence {index}: {one:?}");
                    assert_eq!((one.reason, one.text.as_str()), (alone[&index].reason, alone[&index].text.as_str()));
                    assert_eq!(one.logprobs.len(), alone[&index].logprobs.len());
                }
            }
        }
        ended.store(true, SeqCst);
        disturbers.into_iter().for_each(|thread| thread.join().unwrap());
        assert_nothing_left(&rig.engine);
    }
}

/// H2: a request that waits for its grammar can be aborted, and the engine can close meanwhile.
#[test]
fn waiting_requests_end() {
    let rig = rig(config());
    rig.run(&PROMPT, params(1, "[xy]{20}"));
    let (release, thread) = occupy(&rig, "[xy]{20}");
    let aborted = rig.submit(&PROMPT, params(2, "[xy]{20}"));
    let late = submit(
        &rig.engine,
        Draft { timeout: Some(Duration::from_millis(50)), ..request(&PROMPT, params(1, "[xy]{20}")) },
    );
    assert_eq!(late.unwrap().wait()[&0].reason, Some(FinishReason::Timeout));
    rig.engine.abort_id(aborted.accepted.id).unwrap();
    assert!(aborted.wait().values().all(|one| one.reason == Some(FinishReason::Abort)));
    assert_nothing_left(&rig.engine);
    let closed = rig.submit(&PROMPT, params(1, "[xy]{20}"));
    rig.engine.close();
    assert_eq!(closed.wait()[&0].reason, Some(FinishReason::Abort));
    drop(release);
    thread.join().unwrap();
}

/// H11: a text that reaches a place where nothing fits ends its own request, with a typed error that says what to do.
#[test]
fn a_dead_end_ends_its_own_request() {
    let rig = rig(config());
    let structured_outputs = Some(StructuredOutputs {
        constraint: Constraint::Grammar("start: \"ab\" (\"x\" | \"y\") a\na: \"z\" a a\n".into()),
        ..matching("a").unwrap()
    });
    let beside = rig.submit(&PROMPT, params(2, "[ab]{20}"));
    let done = rig.run(&PROMPT, SamplingParams { structured_outputs, ..greedy(20) });
    assert_eq!(done[&0].reason, Some(FinishReason::Error), "{done:?}");
    assert!(["abx", "aby"].contains(&done[&0].text.as_str()), "what was written stays: {done:?}");
    assert!(matches!(done[&0].error, Some(Error::GrammarFailed { .. })), "{done:?}");
    assert!(beside.wait().values().all(|one| one.reason == Some(FinishReason::Stop)));
    assert_nothing_left(&rig.engine);
}
