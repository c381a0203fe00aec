//! Tests of failures of the engine itself.

mod device_failures;
pub(super) mod interrupts;
pub(super) mod stress;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;

use super::fake::Fault;
use super::support::*;
use crate::Error;
use crate::{Engine, FinishReason, NewRequest, OutputSink, Prompt, SequenceOutput};

/// S6, S24: when the device is lost, all live and later requests end at once with `EngineDead`.
#[test]
fn a_lost_device_ends_everything() {
    let rig = Rig::new();
    rig.script.close_gate();
    rig.script.fault(0, Fault::Dead);
    let clients: Vec<_> = (0..20).map(|i| rig.submit(&[i; 9], greedy(40))).collect();
    let logits = rig.engine.start_prompt_logits(vec![1, 2]).unwrap();
    rig.script.open_gate();
    for client in clients {
        let done = client.wait();
        assert_eq!(done[&0].reason, Some(FinishReason::Error));
        let error = done[&0].error.as_ref().unwrap();
        assert!(matches!(error, Error::EngineDead { reason } if reason.contains("scripted loss")), "{error}");
    }
    assert!(matches!(logits.answer().recv().unwrap(), Err(Error::EngineDead { .. })));
    let later = submit(&rig.engine, request(&[1], greedy(1))).err().unwrap();
    assert!(matches!(&later, Error::EngineDead { reason } if reason.contains("scripted loss")), "{later}");
    assert!(rig.engine.is_closed());
    assert_nothing_left(&rig.engine);
    rig.engine.close();
    assert!(rig.script.dropped.load(Ordering::SeqCst));
}

/// S24: one panic fails a step; three in a row mean that the executor is broken.
#[test]
fn panics_in_a_row_end_the_engine() {
    let rig = Rig::new();
    for step in [0, 1, 3, 4, 5] {
        rig.script.fault(step, Fault::Panic);
    }
    let run = || rig.run(&[1, 2, 3], greedy(1))[&0].clone();
    for _ in 0..2 {
        assert!(matches!(run().error, Some(Error::StepFailed { .. })));
    }
    // A successful step resets the count.
    assert_eq!(run().reason, Some(FinishReason::Length));
    for _ in 0..2 {
        assert!(matches!(run().error, Some(Error::StepFailed { .. })));
    }
    assert!(matches!(run().error, Some(Error::EngineDead { .. })));
    assert!(matches!(submit(&rig.engine, request(&[1], greedy(1))), Err(Error::EngineDead { .. })));
    assert_nothing_left(&rig.engine);
}

/// Errors, unlike panics, may repeat any number of times.
#[test]
fn errors_in_a_row_do_not_end_the_engine() {
    let rig = Rig::new();
    for step in 0..20 {
        rig.script.fault(step, Fault::Error);
        assert!(matches!(rig.run(&[1, 2, 3], greedy(1))[&0].error, Some(Error::StepFailed { .. })));
    }
    assert_eq!(rig.run(&[1, 2, 3], greedy(1))[&0].reason, Some(FinishReason::Length));
    assert_eq!(rig.engine.stats().num_finished_error, 20);
    assert_nothing_left(&rig.engine);
}

/// S24: a failed step only ends its own requests; waiting requests are served.
#[test]
fn requests_outside_the_failed_step_go_on() {
    let rig = Rig::with(crate::config::EngineConfig { max_num_seqs: 2, ..config() }, super::fake::hashed(VOCAB), None);
    rig.script.close_gate();
    rig.script.fault(0, Fault::Panic);
    let clients: Vec<_> = (0..6).map(|i| rig.submit(&[i; 5], greedy(5))).collect();
    rig.script.wait_at_gate();
    rig.script.open_gate();
    let done: Vec<_> = clients.into_iter().map(|client| client.wait()[&0].clone()).collect();
    let failed = done.iter().filter(|one| one.reason == Some(FinishReason::Error)).count();
    assert!((1..=2).contains(&failed), "{failed}");
    for (i, one) in done.iter().enumerate().filter(|(_, one)| one.reason != Some(FinishReason::Error)) {
        assert_eq!(one.tokens, alone(&rig.rule, &[i as u32; 5], &greedy(5), 0, 0));
    }
    assert_nothing_left(&rig.engine);
}

struct Hostile {
    engine: Mutex<Option<Engine>>,
    calls: AtomicUsize,
}

impl OutputSink for Hostile {
    fn deliver(&self, _: Vec<SequenceOutput>) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.engine.lock().take() {
            // The last handle is dropped on the engine's own output thread.
            Some(engine) => {
                engine.close();
                true
            }
            None => std::panic::resume_unwind(Box::new("a sink that panics")),
        }
    }
}

fn hostile(engine: Option<Engine>) -> Arc<Hostile> {
    Arc::new(Hostile { engine: Mutex::new(engine), calls: AtomicUsize::new(0) })
}

fn add(engine: &Engine, sink: Arc<Hostile>) -> crate::Result<()> {
    let prompt = Prompt::TokenIds(vec![1, 2, 3]);
    let request = NewRequest {
        name: None,
        prompt,
        images: Vec::new(),
        params: greedy(1000).into(),
        priority: 0,
        timeout: None,
        cache_salt: None,
        client: None,
        sink,
    };
    engine.add_request(request, |_| {}).map(|_| ())
}

/// S24: a consumer that panics counts as gone: its request is aborted and its blocks are free.
#[test]
fn a_sink_that_panics_loses_its_requests() {
    let rig = Rig::new();
    let sink = hostile(None);
    rig.script.close_gate();
    add(&rig.engine, Arc::clone(&sink)).unwrap();
    rig.script.wait_at_gate();
    rig.script.let_one_pass();
    rig.script.wait_at_gate();
    // The engine thread may have processed the message before it reached the gate.
    while rig.engine.commands_in_queue() == 0 && rig.engine.stats().num_finished_abort == 0 {
        std::thread::yield_now();
    }
    assert!(sink.calls.load(Ordering::SeqCst) >= 1);
    rig.script.open_gate();
    while rig.engine.stats().num_finished_abort == 0 {
        std::thread::yield_now();
    }
    assert_nothing_left(&rig.engine);
    assert_eq!(rig.run(&[4, 5], greedy(5))[&0].tokens.len(), 5);
}

/// S4: a sink that closes the engine from the output thread does not wait for that thread.
#[test]
fn a_sink_may_close_its_engine() {
    let Rig { engine, script, .. } = Rig::new();
    let sink = hostile(Some(engine.clone()));
    add(&engine, Arc::clone(&sink)).unwrap();
    drop(engine);
    while !script.dropped.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert!(sink.calls.load(Ordering::SeqCst) > 0);
}

/// A sink that holds its engine until it is dropped, and reports its consumer as gone once the engine is closed.
struct Owner {
    engine: Engine,
    /// Disconnected once `engine` is dropped, since fields are dropped in order.
    _gone: Sender<()>,
}

impl OutputSink for Owner {
    fn deliver(&self, _: Vec<SequenceOutput>) -> bool {
        self.engine.close();
        false
    }
}

/// S4: the output thread may drop the last handle, together with the sink that holds it.
#[test]
fn a_sink_may_hold_the_last_handle_of_its_engine() {
    let Rig { engine, .. } = Rig::new();
    let (_gone, is_gone) = bounded(0);
    let sink = Arc::new(Owner { engine: engine.clone(), _gone });
    let prompt = Prompt::TokenIds(vec![1, 2, 3]);
    let request = NewRequest {
        name: None,
        prompt,
        images: Vec::new(),
        params: greedy(1000).into(),
        priority: 0,
        timeout: None,
        cache_salt: None,
        client: None,
        sink,
    };
    engine.add_request(request, |_| {}).unwrap();
    drop(engine);
    assert_eq!(is_gone.recv_timeout(HANG), Err(RecvTimeoutError::Disconnected));
}
