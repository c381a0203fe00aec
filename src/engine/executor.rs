//! The interface through which the engine loop runs a model on a device: a few virtual calls per step.

use std::sync::Arc;

use crate::Result;
use crate::backend::MemoryLedger;
use crate::batch::Batch;
use crate::interrupt::Interrupt;
use crate::model::RankHead;
use crate::selection::{Needs, Selection, Wish};

pub trait Executor: Send {
    /// Returns the switch that stops a step under way. A stopped step ends in `Error::Interrupted` and may be launched
    /// again. `None` where steps are too short to be worth stopping, as on a GPU, and wherever the device is
    /// asynchronous.
    fn interrupt(&self) -> Option<Interrupt> {
        None
    }
    /// Whether tokens are guessed by a draft model that no step computes: it has those tokens alone that `draft` was
    /// given.
    fn draft_lags(&self) -> bool {
        false
    }
    /// Puts guesses in the place of the tokens of a step that are to be guessed (`TO_GUESS`), before it is launched;
    /// `first` is what `Scheduler::plan_drafts` says is to be computed for that. An error (or panic) fails the requests
    /// of the step, as one of `launch` does.
    fn draft(&mut self, batch: &mut Batch, first: &Batch) -> Result<()>;
    /// Starts a step. One step at a time; but where the device is asynchronous, one more may be launched behind a step
    /// that was selected from and not collected yet, of which the most likely token of each row is all that is wanted:
    /// the device puts these in for the batch's `chosen`. An error (or panic), here, in `select` or in `collect`, fails
    /// the requests of the step; the executor stays usable unless the error is `Error::EngineDead`.
    fn launch(&mut self, batch: &Batch, needs: Needs) -> Result<()>;
    /// Says what `collect` is to bring of each row of `Batch::logits_indices` of the step that was launched. Once a
    /// step.
    fn select(&mut self, wishes: &[Wish<'_>]) -> Result<()>;
    /// Waits for the step that was selected from last. After an error a step that was launched behind it is lost too.
    fn collect(&mut self) -> Result<Selection<'_>>;
    /// Whether the device computes on its own after `launch`, so that the next step may be prepared and launched
    /// meanwhile.
    fn is_asynchronous(&self) -> bool;
    fn vocab_size(&self) -> usize;
    /// The head of a model that ranks.
    fn rank_head(&self) -> Option<Arc<RankHead>> {
        None
    }
    fn memory(&self) -> MemoryLedger;
    fn device_allocations(&self) -> u64;
    fn describe(&self) -> String;
}
