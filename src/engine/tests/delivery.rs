//! What reaches a consumer that is late.

use std::collections::BTreeSet;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use super::support::*;
use crate::config::SamplingParams;
use crate::engine::{NewRequest, OutputSink, Prompt, RequestMetrics, SequenceOutput};

const PROMPT: [u32; 5] = [9, 8, 7, 6, 5];

/// Holds up the output thread once, until told otherwise.
struct Slow {
    /// One message as it is called, then waits for one.
    arrived: Sender<()>,
    go_on: Receiver<()>,
    outputs: Sender<Vec<SequenceOutput>>,
}

impl OutputSink for Slow {
    fn deliver(&self, outputs: Vec<SequenceOutput>) -> bool {
        // Both ends are gone after the first time.
        if self.arrived.send(()).is_ok() {
            let _ = self.go_on.recv();
        }
        self.outputs.send(outputs).is_ok()
    }
}

/// A4: the last output of a request that has finished says how long it took, whichever of its sequences ended last and
/// however late they are all delivered.
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
    // The first sequence goes on longest: its last output is merged with one from before the others' ends.
    let seed = (0..).find(|&seed| matches!(ends(seed), [a, b, c] if a > b + 1 && a > c + 1 && b > 1 && c > 1)).unwrap();
    let (arrived, arrives) = bounded(0);
    let (going, go_on) = bounded(0);
    let (outputs, received) = unbounded();
    let sink = Arc::new(Slow { arrived, go_on, outputs });
    let request = NewRequest {
        name: None,
        prompt: Prompt::TokenIds(PROMPT.to_vec()),
        params: params(seed),
        priority: 0,
        timeout: None,
        cache_salt: None,
        sink,
    };
    // The first step alone is delivered first, however late the output thread is.
    rig.script.close_gate();
    rig.engine.add_request(request).unwrap();
    rig.script.wait_at_gate();
    rig.script.let_one_pass();
    arrives.recv_timeout(HANG).unwrap();
    rig.script.open_gate();
    while rig.engine.stats().num_finished_stop + rig.engine.stats().num_finished_length == 0 {
        std::thread::yield_now();
    }
    // Answered after the outputs of that step have left the engine thread.
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
