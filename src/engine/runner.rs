//! A model on a device as the engine loop sees it.

use std::sync::Arc;

use super::executor::Executor;
use crate::Result;
use crate::backend::{Backend, MemoryLedger};
use crate::batch::Batch;
use crate::interrupt::Interrupt;
use crate::model::{Decoder, RankHead};
use crate::selection::{Needs, Selection, Wish};

/// `Executor` over any backend, monomorphised: a few virtual calls per step, none per op.
pub struct Runner<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
}

impl<B: Backend> Runner<B> {
    pub fn new(backend: B, decoder: Decoder<B>) -> Self {
        Self { backend, decoder }
    }
}

impl<B: Backend> Executor for Runner<B>
where
    Decoder<B>: Send,
{
    fn interrupt(&self) -> Option<Interrupt> {
        self.backend.interrupt().cloned()
    }

    fn draft_lags(&self) -> bool {
        self.decoder.spec().draft_lags()
    }

    fn draft(&mut self, batch: &mut Batch, first: &Batch) -> Result<()> {
        self.decoder.draft(&mut self.backend, batch, first)
    }

    fn launch(&mut self, batch: &Batch, needs: Needs) -> Result<()> {
        self.decoder.launch(&mut self.backend, batch, needs)
    }

    fn select(&mut self, wishes: &[Wish<'_>]) -> Result<()> {
        self.decoder.select(&mut self.backend, wishes)
    }

    fn collect(&mut self) -> Result<Selection<'_>> {
        self.decoder.collect(&mut self.backend)
    }

    fn is_asynchronous(&self) -> bool {
        B::ASYNCHRONOUS
    }

    fn vocab_size(&self) -> usize {
        self.decoder.spec().vocab_size
    }

    fn rank_head(&self) -> Option<Arc<RankHead>> {
        self.decoder.rank_head().cloned()
    }

    fn memory(&self) -> MemoryLedger {
        self.backend.memory()
    }

    fn device_allocations(&self) -> u64 {
        self.backend.device_allocations()
    }

    fn describe(&self) -> String {
        self.backend.describe()
    }
}
