//! A sink for callers that wait in a thread.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{OutputSink, SequenceOutput};

/// Sends deliveries to a channel. Its requests are aborted once the receiver is dropped.
#[derive(Debug)]
pub struct ChannelSink {
    sender: Sender<Vec<SequenceOutput>>,
}

impl ChannelSink {
    pub fn new() -> (Arc<Self>, Receiver<Vec<SequenceOutput>>) {
        let (sender, receiver) = unbounded();
        (Arc::new(Self { sender }), receiver)
    }
}

impl OutputSink for ChannelSink {
    fn deliver(&self, outputs: Vec<SequenceOutput>) -> bool {
        self.sender.send(outputs).is_ok()
    }
}
