//! A step while its ops are called: the tools that they compute with, and the facts that they need about it.

use super::compute::Compute;
use super::rehearsal::AttentionShape;
use super::step::StepInputs;
use crate::batch::Batch;

/// One step on the GPU, whose numbers are on their way to the device. An op is queued when it returns.
pub struct GpuStep<'s> {
    pub(super) compute: &'s mut Compute,
    pub(super) inputs: &'s mut StepInputs,
    /// Shapes of the attention ops that were called, each once.
    pub(super) attention_shapes: &'s mut Vec<AttentionShape>,
    pub(super) batch: &'s Batch,
    /// Numbers of rows of tokens and of logits.
    pub(super) tokens: usize,
    pub(super) logits: usize,
    /// Number of rows, where the step is being recorded for every batch of up to so many single rows.
    pub(super) recorded: Option<usize>,
}

impl<'s> GpuStep<'s> {
    /// Makes a step of so many rows of tokens and of logits; `recorded` is the field of that name.
    pub fn new(
        compute: &'s mut Compute,
        inputs: &'s mut StepInputs,
        attention_shapes: &'s mut Vec<AttentionShape>,
        batch: &'s Batch,
        [tokens, logits]: [usize; 2],
        recorded: Option<usize>,
    ) -> Self {
        Self { compute, inputs, attention_shapes, batch, tokens, logits, recorded }
    }
}
