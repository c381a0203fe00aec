//! What the engine loop needs from a model on a device: one virtual call per step.

use crate::Result;
use crate::backend::MemoryLedger;
use crate::batch::Batch;

/// Logits of the rows named by `Batch::logits_indices`, in that order.
#[derive(Debug, Clone, Copy)]
pub struct Logits<'a> {
    pub values: &'a [f32],
    pub vocab_size: usize,
}

impl<'a> Logits<'a> {
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.values[i * self.vocab_size..(i + 1) * self.vocab_size]
    }
}

pub trait Executor: Send {
    /// Runs one step. An error (or panic) fails the requests of the step; the executor stays usable unless the
    /// error is `Error::EngineDead`.
    fn forward(&mut self, batch: &Batch) -> Result<Logits<'_>>;
    fn vocab_size(&self) -> usize;
    fn memory(&self) -> MemoryLedger;
    fn device_allocations(&self) -> u64;
    fn describe(&self) -> String;
}
