//! Outputs that the next flush sends to the output thread.

use crate::delivery::{Delivery, Outbox};

pub(super) struct Unsent {
    outputs: Vec<Delivery>,
    outbox: Outbox,
}

impl Unsent {
    pub(super) fn new(outbox: Outbox) -> Self {
        Self { outputs: Vec::new(), outbox }
    }

    pub(super) fn push(&mut self, output: Delivery) {
        self.outputs.push(output);
    }

    pub(super) fn extend(&mut self, outputs: impl IntoIterator<Item = Delivery>) {
        self.outputs.extend(outputs);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    pub(super) fn send(&mut self) {
        self.outbox.send(&mut self.outputs);
    }
}
