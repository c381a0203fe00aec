//! The output thread: brings outputs to their sinks, so that the engine thread never waits for a consumer.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::core::guarded;
use super::handle::RequestId;
use super::output::{SequenceOutput, SharedSink};
use super::shared::{Command, Shared};

pub(super) type Delivery = (SharedSink, SequenceOutput);

/// Everything new for one sink.
struct Parcel {
    sink: SharedSink,
    outputs: Vec<SequenceOutput>,
    /// Where in `outputs` a sequence is, so that what came in several steps becomes one entry.
    places: HashMap<(RequestId, usize), usize>,
}

/// Runs until the engine thread has dropped its end of the channel and all is delivered.
pub(super) fn run(outputs: &Receiver<Vec<Delivery>>, shared: &Shared) {
    while let Ok(first) = outputs.recv() {
        let mut parcels = Vec::new();
        for (sink, output) in std::iter::once(first).chain(outputs.try_iter()).flatten() {
            pack(&mut parcels, sink, output);
        }
        for Parcel { sink, outputs, .. } in parcels {
            let alive = guarded(|| sink.deliver(outputs)).unwrap_or_else(|_| {
                tracing::error!("a consumer of outputs panicked; its requests are aborted");
                false
            });
            if !alive {
                // A closed engine has ended these requests already.
                let _ = shared.send(Command::SinkGone(sink));
            }
        }
    }
}

fn pack(parcels: &mut Vec<Parcel>, sink: SharedSink, output: SequenceOutput) {
    // Sinks are few (one per event loop or waiting call), and a step's outputs often go to the same one in a row.
    let same = |parcel: &Parcel| std::ptr::addr_eq(Arc::as_ptr(&parcel.sink), Arc::as_ptr(&sink));
    let place = parcels.iter().rposition(same).unwrap_or_else(|| {
        parcels.push(Parcel { sink, outputs: Vec::new(), places: HashMap::new() });
        parcels.len() - 1
    });
    let parcel = &mut parcels[place];
    let key = (output.request, output.index);
    match parcel.places.get(&key) {
        Some(&at) => merge(&mut parcel.outputs[at], output),
        None => {
            parcel.places.insert(key, parcel.outputs.len());
            parcel.outputs.push(output);
        }
    }
}

fn merge(earlier: &mut SequenceOutput, later: SequenceOutput) {
    earlier.token_ids.extend(later.token_ids);
    earlier.text.push_str(&later.text);
    earlier.logprobs.extend(later.logprobs);
    earlier.cumulative_logprob = later.cumulative_logprob;
    earlier.prompt_logprobs = earlier.prompt_logprobs.take().or(later.prompt_logprobs);
    earlier.finish_reason = later.finish_reason;
    earlier.stop_reason = later.stop_reason;
    earlier.error = later.error;
    earlier.metrics = later.metrics;
}
