//! A step while its ops are called: the tools that they compute with, and the facts about the step.

use crate::batch::Batch;
use crate::capture::steps::AttentionShape;
use crate::compute::Compute;
use crate::step::StepInputs;

/// One step on the GPU. Its integers are already queued for the copy to the device. Each op is queued when it returns.
pub struct GpuStep<'s> {
    pub(crate) compute: &'s mut Compute,
    pub(crate) inputs: &'s mut StepInputs,
    /// Shapes of the attention ops called so far, without duplicates.
    pub(crate) attention_shapes: &'s mut Vec<AttentionShape>,
    pub(crate) batch: &'s Batch,
    /// Numbers of token rows and of logits rows.
    pub(crate) tokens: usize,
    pub(crate) logits: usize,
    /// The number of rows of the captured size, if the step is being captured for every batch of up to as many single
    /// rows.
    pub(crate) captured: Option<usize>,
}

impl<'s> GpuStep<'s> {
    /// Creates a step of this many token rows and logits rows; `captured` is the field of that name.
    pub fn new(
        compute: &'s mut Compute,
        inputs: &'s mut StepInputs,
        attention_shapes: &'s mut Vec<AttentionShape>,
        batch: &'s Batch,
        [tokens, logits]: [usize; 2],
        captured: Option<usize>,
    ) -> Self {
        Self { compute, inputs, attention_shapes, batch, tokens, logits, captured }
    }
}
