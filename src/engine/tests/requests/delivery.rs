//! Tests of outputs that reach a slow consumer.

use std::collections::BTreeSet;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;

use crate::Error;
use crate::config::SamplingParams;
use crate::tests::support::*;
use crate::{OutputSink, RequestId, RequestMetrics, SequenceOutput};

const PROMPT: [u32; 5] = [9, 8, 7, 6, 5];

/// Blocks the output thread once, until released.
struct Slow {
    /// Gets a message when the sink is called. The sink then waits for one from `go_on`.
    arrived: Sender<()>,
    go_on: Receiver<()>,
    outputs: Sender<Vec<SequenceOutput>>,
}

impl OutputSink for Slow {
    fn deliver(&self, outputs: Vec<SequenceOutput>) -> bool {
        // The test drops both ends after the first call, which disables this.
        if self.arrived.send(()).is_ok() {
            let _ = self.go_on.recv();
        }
        self.outputs.send(outputs).is_ok()
    }
}

/// A4: the last output of a finished request has its total time, whichever of its sequences ended last and however late
/// all outputs are delivered.
#[test]
fn the_last_output_has_the_latest_metrics() {
    let rig = Rig::new();
    let params = |seed| SamplingParams {
        n: 3,
        max_tokens: 40,
        temperature: 3.0,
        seed: Some(seed),
        stop_token_ids: (0..8).collect(),
        ..Default::default()
    };
    let ends = |seed| [0, 1, 2].map(|index| alone(&rig.rule, &PROMPT, &params(seed), index, seed).len());
    // The first sequence runs longest. Its last output is merged with one from before the others' ends.
    let seed = (0..).find(|&seed| matches!(ends(seed), [a, b, c] if a > b + 1 && a > c + 1 && b > 1 && c > 1)).unwrap();
    let (arrived, arrives) = bounded(0);
    let (going, go_on) = bounded(0);
    let (outputs, received) = unbounded();
    let sink = Arc::new(Slow { arrived, go_on, outputs });
    let request = request(&PROMPT, params(seed)).with_sink(sink);
    // Only the first step is delivered first, however late the output thread is.
    rig.script.close_gate();
    rig.engine.add_request(request, |_| {}).unwrap();
    rig.script.wait_at_gate();
    rig.script.let_one_pass();
    arrives.recv_timeout(HANG).unwrap();
    rig.script.open_gate();
    while rig.engine.stats().num_finished_stop + rig.engine.stats().num_finished_length == 0 {
        std::thread::yield_now();
    }
    // This is answered after the outputs of that step have left the engine thread.
    rig.engine.check_integrity().unwrap();
    drop(arrives);
    drop(going);
    received.recv_timeout(HANG).unwrap();
    let rest = received.recv_timeout(HANG).unwrap();
    assert_eq!(rest.iter().map(|output| output.index).collect::<BTreeSet<_>>(), BTreeSet::from([0, 1, 2]));
    let last = rest.last().unwrap();
    assert_eq!(last.index, 0);
    let RequestMetrics { time_in_queue, time_to_first_token, total_time, .. } = last.metrics;
    assert!(time_in_queue <= time_to_first_token && time_to_first_token <= total_time && total_time.is_some());
    assert_nothing_left(&rig.engine);
}

/// A sink that knows its requests by id.
struct Expecting {
    expected: Mutex<BTreeSet<RequestId>>,
    /// For each output: was its request expected, and was it the request's last output?
    outputs: Sender<(bool, bool)>,
}

impl OutputSink for Expecting {
    fn deliver(&self, outputs: Vec<SequenceOutput>) -> bool {
        let expected = self.expected.lock();
        outputs.into_iter().all(|output| {
            let is_last = output.finish_reason.is_some();
            self.outputs.send((expected.contains(&output.request), is_last)).is_ok()
        })
    }
}

/// A sink that knows requests by id gets each id before the first output, and none of a rejected request.
#[test]
fn a_request_is_announced_before_its_outputs() {
    let rig = Rig::new();
    let (outputs, received) = unbounded();
    let sink = Arc::new(Expecting { expected: Mutex::default(), outputs });
    let add = |prompt: &[u32]| {
        let announce = |id| assert!(sink.expected.lock().insert(id), "announced twice");
        rig.engine.add_request(request(prompt, greedy(1)).with_sink(Arc::clone(&sink) as _), announce)
    };
    for _ in 0..200 {
        let accepted = add(&PROMPT).unwrap();
        assert!(sink.expected.lock().contains(&accepted.id));
        assert_eq!(received.recv_timeout(HANG).unwrap(), (true, true));
    }
    assert!(matches!(add(&[]), Err(Error::InvalidRequest { .. })));
    rig.engine.close();
    assert!(matches!(add(&PROMPT), Err(Error::EngineDead { .. })));
    assert_eq!(sink.expected.lock().len(), 200);
}
