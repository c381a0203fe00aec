//! What the engine loop needs from a model on a device: one virtual call per step.

use crate::Result;
use crate::backend::MemoryLedger;
use crate::batch::Batch;
use crate::selection::{Selection, Wanted};

pub trait Executor: Send {
    /// Runs one step and brings back what is `wanted` of each row of `Batch::logits_indices`. An error (or panic) fails
    /// the requests of the step; the executor stays usable unless the error is `Error::EngineDead`.
    fn forward(&mut self, batch: &Batch, wanted: &[Wanted]) -> Result<Selection<'_>>;
    fn vocab_size(&self) -> usize;
    fn memory(&self) -> MemoryLedger;
    fn device_allocations(&self) -> u64;
    fn describe(&self) -> String;
}
