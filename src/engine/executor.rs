//! The interface through which the engine loop runs a model on a device: a few virtual calls per step.

use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::backend::{ExpertCacheUse, MemoryLedger};
use crate::batch::Batch;
use crate::interrupt::Interrupt;
use crate::model::Head;
use crate::model::vision::Images;
use crate::selection::{Needs, SamplingRequest, Selection};

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
    /// `chosen`. An error or panic here, in `select` or in `collect` fails the requests of the step. The executor stays
    /// usable unless the error is `Error::EngineDead`.
    fn launch(&mut self, batch: &Batch, images: &Images, needs: Needs) -> Result<()>;
    /// Returns the number of rows that one `select` takes. A larger step is selected and collected piece by piece, and
    /// completely before the next launch.
    fn rows_at_once(&self) -> usize;
    /// Sets what `collect` returns for each of these rows of `Batch::logits_indices` of the launched step. It is called
    /// once per step with all rows, or once per piece of at most `rows_at_once` rows.
    fn select(&mut self, rows: Range<usize>, sampling_requests: &[SamplingRequest<'_>]) -> Result<()>;
    /// Waits for the rows that were selected last. After an error, a step that was launched after theirs is lost too.
    fn collect(&mut self) -> Result<Selection<'_>>;
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
