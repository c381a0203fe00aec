//! Runs a model on a device for the engine loop.

use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::backend::{Backend, Content, Copied, ExpertCacheUse, MemoryLedger};
use crate::batch::Batch;
use crate::executor::Executor;
use crate::interrupt::Interrupt;
use crate::model::vision::Images;
use crate::model::{Decoder, Head};
use crate::selection::{Needs, SamplingRequest, Selection};

/// `Executor` for any backend, monomorphized: a few virtual calls per step, none per op.
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

    fn launch(&mut self, batch: &Batch, images: &Images, needs: Needs) -> Result<()> {
        self.decoder.launch(&mut self.backend, batch, images, needs)
    }

    fn rows_at_once(&self) -> usize {
        self.decoder.rows_at_once()
    }

    fn select(&mut self, rows: Range<usize>, sampling_requests: &[SamplingRequest<'_>]) -> Result<()> {
        self.decoder.select(&mut self.backend, rows, sampling_requests)
    }

    fn collect(&mut self) -> Result<Selection<'_>> {
        self.decoder.collect(&mut self.backend)
    }

    fn content_bytes(&self) -> Vec<u64> {
        self.decoder.content_bytes()
    }

    fn prepare_copies(&mut self, staged: &[usize]) -> Result<()> {
        let staged: Vec<_> = self.decoder.content_bytes().into_iter().zip(staged.iter().copied()).collect();
        self.backend.prepare_copies(&staged)
    }

    fn save(&mut self, number: u64, pool: usize, index: u32) -> Result<bool> {
        self.decoder.copy_out(&mut self.backend, number, pool, index)
    }

    fn saved(&mut self, wait: bool) -> Result<Option<Copied>> {
        self.backend.copied(wait)
    }

    fn restore(&mut self, number: u64, pool: usize, index: u32, content: &Content) -> Result<bool> {
        self.decoder.copy_in(&mut self.backend, number, pool, index, content)
    }

    fn restored(&mut self, wait: bool) -> Result<Option<u64>> {
        self.backend.copied_in(wait)
    }

    fn recycle(&mut self, content: Content) -> Result<()> {
        self.backend.recycle(content)
    }

    fn order_copies(&mut self) -> Result<()> {
        self.backend.order_copies()
    }

    fn is_asynchronous(&self) -> bool {
        B::ASYNCHRONOUS
    }

    fn vocab_size(&self) -> usize {
        self.decoder.spec().vocab_size
    }

    fn head(&self) -> Option<Arc<Head>> {
        self.decoder.head().cloned()
    }

    fn memory(&self) -> MemoryLedger {
        self.backend.memory()
    }

    fn expert_cache(&self) -> ExpertCacheUse {
        self.backend.expert_cache()
    }

    fn device_allocations(&self) -> u64 {
        self.backend.device_allocations()
    }

    fn describe(&self) -> String {
        self.backend.describe()
    }
}
