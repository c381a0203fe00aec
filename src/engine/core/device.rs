//! The executor, as steps use it: a panic in it is an error of the step.

use std::ops::Range;

use crate::Result;
use crate::batch::Batch;
use crate::executor::Executor;
use crate::model::vision::Images;
use crate::selection::{Needs, SamplingRequest, Selection};
use crate::threads::panics::{forward_panicked, guarded};

pub(super) struct Device {
    executor: Box<dyn Executor>,
    /// Calls in a row that panicked, since results last arrived.
    panics: u32,
}

impl Device {
    pub(super) fn new(executor: Box<dyn Executor>) -> Self {
        Self { executor, panics: 0 }
    }

    pub(super) fn executor(&self) -> &dyn Executor {
        self.executor.as_ref()
    }

    /// Returns the executor for what is no part of a step.
    pub(super) fn executor_mut(&mut self) -> &mut dyn Executor {
        self.executor.as_mut()
    }

    pub(super) fn draft(&mut self, batch: &mut Batch, first: &Batch) -> Result<()> {
        self.run(|executor| executor.draft(batch, first))
    }

    pub(super) fn launch(&mut self, batch: &Batch, images: &Images, needs: Needs) -> Result<()> {
        self.run(|executor| executor.launch(batch, images, needs))
    }

    pub(super) fn select(&mut self, rows: Range<usize>, sampling_requests: &[SamplingRequest<'_>]) -> Result<()> {
        self.run(|executor| executor.select(rows, sampling_requests))
    }

    pub(super) fn collect(&mut self) -> Result<Selection<'_>> {
        let (executor, panics) = (&mut self.executor, &mut self.panics);
        let collected = guarded(|| executor.collect());
        let logits = collected.unwrap_or_else(|payload| Err(forward_panicked(panics, payload.as_ref())))?;
        *panics = 0;
        Ok(logits)
    }

    fn run(&mut self, call: impl FnOnce(&mut dyn Executor) -> Result<()>) -> Result<()> {
        let executor = self.executor.as_mut();
        let result = guarded(|| call(executor));
        result.unwrap_or_else(|payload| Err(forward_panicked(&mut self.panics, payload.as_ref())))
    }
}
