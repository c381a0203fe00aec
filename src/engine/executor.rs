//! The interface through which the engine loop runs a model on a device: a few virtual calls per step.

use std::ops::Range;
use std::sync::Arc;

use crate::backend::{Content, Copied, ExpertCacheUse, MemoryLedger};
use crate::batch::Batch;
use crate::interrupt::Interrupt;
use crate::model::Head;
use crate::model::vision::Images;
use crate::selection::{Needs, SamplingRequest, Selection};
use crate::{Error, Result};

pub trait Executor: Send {
    /// Returns the switch that interrupts a running step. An interrupted step ends in `Error::Interrupted` and may be
    /// launched again. `None` where steps are too short to be worth interrupting, as on a GPU, and on every
    /// asynchronous device.
    fn interrupt(&self) -> Option<Interrupt> {
        None
    }
    /// True if a draft model proposes the draft tokens. Steps do not compute it; it has only the tokens given to
    /// `draft`.
    fn draft_lags(&self) -> bool {
        false
    }
    /// Replaces each `TO_DRAFT` of a step by a draft token before the step is launched. `first` holds what has to be
    /// computed for that, as `Scheduler::plan_drafts` returns it. An error or panic fails the requests of the step, as
    /// in `launch`.
    fn draft(&mut self, batch: &mut Batch, first: &Batch) -> Result<()>;
    /// Starts a step. `images` has the rows of the batch's images. Usually only one step may be in flight. An
    /// asynchronous device accepts one more if the step before was selected from but not collected. Only the most
    /// likely token of each of its rows may have been requested. The device fills those tokens in for the batch's
    /// `chosen`.
    ///
    /// An error or panic here, in `select` or in `collect` fails the requests of the step. The executor stays usable
    /// unless the error is `Error::EngineDead`.
    fn launch(&mut self, batch: &Batch, images: &Images, needs: Needs) -> Result<()>;
    /// Returns the number of rows that one `select` takes. A larger step is selected and collected piece by piece, and
    /// completely before the next launch.
    fn rows_at_once(&self) -> usize;
    /// Sets what `collect` returns for each of these rows of `Batch::logits_indices` of the launched step. It is called
    /// once per step with all rows, or once per piece of at most `rows_at_once` rows.
    fn select(&mut self, rows: Range<usize>, sampling_requests: &[SamplingRequest<'_>]) -> Result<()>;
    /// Waits for the rows that were selected last. After an error, a step that was launched after theirs is lost too.
    fn collect(&mut self) -> Result<Selection<'_>>;
    /// Returns the bytes of a content of each pool: of a block of each KV group, then of a slot of states if there are
    /// any. Empty if contents cannot be copied; then the methods below fail.
    fn content_bytes(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Prepares copies of contents; the argument has the maximum number at once for each pool. Called once, before the
    /// methods below.
    fn prepare_copies(&mut self, _staged: &[usize]) -> Result<()> {
        Err(no_copies())
    }
    /// Begins to copy a content to the host. False if as much as possible is being copied already.
    fn save(&mut self, _number: u64, _pool: usize, _index: u32) -> Result<bool> {
        Err(no_copies())
    }
    /// Returns a content whose copy has ended, by the number that it was given. With `wait`, waits for the oldest.
    fn saved(&mut self, _wait: bool) -> Result<Option<Copied>> {
        Err(no_copies())
    }
    /// Begins to copy a content to a block or slot, after all steps and copies to the host so far. No step may use it
    /// before `restored` names it. False if as much as possible is being copied already.
    fn restore(&mut self, _number: u64, _pool: usize, _index: u32, _content: &Content) -> Result<bool> {
        Err(no_copies())
    }
    /// Returns the number of a content that has arrived. With `wait`, waits for the oldest.
    fn restored(&mut self, _wait: bool) -> Result<Option<u64>> {
        Err(no_copies())
    }
    /// Takes a content that is not needed any more, whose memory later copies may use.
    fn recycle(&mut self, _content: Content) -> Result<()> {
        Ok(())
    }
    /// Makes the next step begin after all copies to the host so far.
    fn order_copies(&mut self) -> Result<()> {
        Err(no_copies())
    }
    /// True if the device computes on its own after `launch`. Then the next step may be prepared and launched
    /// meanwhile.
    fn is_asynchronous(&self) -> bool;
    fn vocab_size(&self) -> usize;
    /// Returns the head that pooled hidden states go through, for a model that has one.
    fn head(&self) -> Option<Arc<Head>> {
        None
    }
    fn memory(&self) -> MemoryLedger;
    fn device_allocations(&self) -> u64;
    /// Returns the uses of a device's cache of experts: zeros without one.
    fn expert_cache(&self) -> ExpertCacheUse {
        ExpertCacheUse::default()
    }
    fn describe(&self) -> String;
}

fn no_copies() -> Error {
    Error::internal("an executor that copies no contents was asked to")
}
