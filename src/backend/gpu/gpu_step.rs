//! A step while its ops are called: what they compute with, and what they are to know of it.

use super::compute::Compute;
use super::rehearsal::AttentionShape;
use super::step::StepInputs;
use crate::batch::Batch;

/// One step on the GPU, whose numbers are on their way to the device. An op is queued when it returns.
pub struct GpuStep<'s> {
    pub(super) compute: &'s mut Compute,
    pub(super) inputs: &'s mut StepInputs,
    /// Those that attention was asked for.
    pub(super) attention_shapes: &'s mut Vec<AttentionShape>,
    pub(super) batch: &'s Batch,
    /// Rows of tokens and of logits.
    pub(super) tokens: usize,
    pub(super) logits: usize,
    /// The same rows, where the step is being recorded for every batch of single rows up to so many.
    pub(super) recorded: Option<usize>,
}

impl<'s> GpuStep<'s> {
    /// A step of so many rows of tokens and of logits; `recorded` as the field.
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
