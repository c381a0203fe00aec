//! The output thread: delivers outputs to their sinks, so that the engine thread never waits for a consumer.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::ids::RequestId;
use super::output::{SequenceOutput, SharedSink, same_sink};
use super::shared::{Command, Shared};
use super::threads::panics::guarded;

pub(super) type Delivery = (SharedSink, SequenceOutput);

/// A mailbox between the engine thread and the output thread. A sink may block the output thread, for instance while it
/// waits for the Python interpreter. Meanwhile outputs are merged here, so there is one entry per sequence.
#[derive(Default)]
struct Mailbox {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    parcels: Vec<Parcel>,
    /// The number of outputs so far, which orders the outputs of a parcel.
    now: u64,
    /// True if the engine thread is gone.
    closed: bool,
}

/// Everything new for one sink.
struct Parcel {
    sink: SharedSink,
    /// The output of each sequence and the time of its last part. Parts from several steps are merged into one output.
    outputs: HashMap<(RequestId, usize), (u64, SequenceOutput)>,
}

impl Parcel {
    fn add(&mut self, now: u64, output: SequenceOutput) {
        match self.outputs.get_mut(&(output.request, output.index)) {
            Some((time, earlier)) => {
                *time = now;
                earlier.merge(output);
            }
            None => {
                self.outputs.insert((output.request, output.index), (now, output));
            }
        }
    }

    /// Returns the outputs in the order of their last parts, so that a request's last output has the latest metrics.
    fn in_order(self) -> (SharedSink, Vec<SequenceOutput>) {
        let mut outputs: Vec<_> = self.outputs.into_values().collect();
        outputs.sort_unstable_by_key(|&(time, _)| time);
        (self.sink, outputs.into_iter().map(|(_, output)| output).collect())
    }
}

/// The engine thread's end of the mailbox. The output thread ends once it is dropped and everything is delivered.
pub(super) struct Outbox(Arc<Mailbox>);

/// The output thread's end of the mailbox.
pub(super) struct Outputs(Arc<Mailbox>);

pub(super) fn mailbox() -> (Outbox, Outputs) {
    let mailbox = Arc::new(Mailbox::default());
    (Outbox(Arc::clone(&mailbox)), Outputs(mailbox))
}

impl Outbox {
    pub(super) fn send(&self, deliveries: &mut Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        let mut state = self.0.state.lock();
        for (sink, output) in deliveries.drain(..) {
            state.pack(sink, output);
        }
        self.0.news.notify_one();
    }

    /// Outputs that the output thread has not taken yet.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.state.lock().parcels.iter().map(|parcel| parcel.outputs.len()).sum()
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.news.notify_one();
    }
}

impl Outputs {
    /// Waits for outputs and returns all of them; `None` once no more can arrive.
    fn take(&self) -> Option<Vec<Parcel>> {
        let mut state = self.0.state.lock();
        while state.parcels.is_empty() {
            if state.closed {
                return None;
            }
            self.0.news.wait(&mut state);
        }
        Some(std::mem::take(&mut state.parcels))
    }
}

impl State {
    fn pack(&mut self, sink: SharedSink, output: SequenceOutput) {
        // Sinks are few (one per event loop or waiting call), and a step's outputs often go to the same one in a row.
        let place = self.parcels.iter().rposition(|parcel| same_sink(&parcel.sink, &sink)).unwrap_or_else(|| {
            self.parcels.push(Parcel { sink, outputs: HashMap::new() });
            self.parcels.len() - 1
        });
        self.now += 1;
        self.parcels[place].add(self.now, output);
    }
}

/// Runs until the engine thread has dropped its end and everything is delivered.
pub(super) fn run(outputs: &Outputs, shared: &Shared) {
    while let Some(parcels) = outputs.take() {
        for (sink, outputs) in parcels.into_iter().map(Parcel::in_order) {
            let alive = guarded(|| sink.deliver(outputs)).unwrap_or_else(|_| {
                tracing::error!("a consumer of outputs panicked; its requests are aborted");
                false
            });
            if !alive {
                // A closed engine has already ended these requests.
                let _ = shared.send(Command::SinkGone(sink));
            }
        }
    }
    shared.end_delivery();
}

#[cfg(test)]
mod tests {
    use super::super::output::{FinishReason, RequestMetrics};
    use super::*;
    use crate::output::sink::ChannelSink;

    fn output(index: usize, token: u32, end: Option<f64>) -> SequenceOutput {
        SequenceOutput {
            request: RequestId(1),
            index,
            token_ids: vec![token],
            text: token.to_string(),
            logprobs: Vec::new(),
            cumulative_logprob: None,
            prompt_logprobs: None,
            embedding: None,
            finish_reason: end.map(|_| FinishReason::Length),
            stop_reason: None,
            error: None,
            metrics: RequestMetrics { total_time: end, ..Default::default() },
        }
    }

    /// A23: while the output thread is blocked, there is one output per sequence, however many tokens arrive.
    #[test]
    fn what_nobody_takes_is_merged() {
        let (outbox, outputs) = mailbox();
        let sink: SharedSink = ChannelSink::new().0;
        for token in 0..1000 {
            outbox
                .send(&mut vec![(Arc::clone(&sink), output(0, token, None)), (Arc::clone(&sink), output(1, 7, None))]);
            assert_eq!(outbox.len(), 2);
        }
        outbox.send(&mut vec![(Arc::clone(&sink), output(0, 1000, Some(5.0)))]);
        drop(outbox);
        let mut parcels = outputs.take().unwrap();
        let (_, merged) = parcels.remove(0).in_order();
        assert!(parcels.is_empty() && outputs.take().is_none());
        assert_eq!(merged.len(), 2);
        let last = &merged[1];
        assert_eq!((last.index, last.metrics.total_time), (0, Some(5.0)));
        assert!(last.token_ids.iter().copied().eq(0..=1000));
        assert_eq!(last.finish_reason, Some(FinishReason::Length));
        assert_eq!(merged[0].token_ids, [7; 1000]);
    }
}
