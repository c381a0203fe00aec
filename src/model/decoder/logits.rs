//! The output projection.

use super::{Input, linear_of};
use crate::backend::{Backend, Cap, Ops, ScaleRows};
use crate::layers::Weights;
use crate::spec::{LogitsSpec, ModelSpec};
use crate::{Error, Result};

pub(super) fn no_logits() -> Error {
    Error::internal("logits of a model without an output projection")
}

/// Computes the logits of rows of hidden states.
pub(super) fn logits_of<B: Backend>(
    step: &mut B::Step<'_>,
    input: Input<'_, B>,
    weights: &Weights<B>,
    spec: &ModelSpec,
    normed: &mut B::Buffer,
    logits: &mut B::Buffer,
) -> Result<()> {
    let (matrix, rows) = (weights.output.as_ref().unwrap_or(&weights.token_embd), input.rows);
    linear_of(step, input, matrix, normed, logits)?;
    match spec.logits {
        LogitsSpec::PLAIN => Ok(()),
        LogitsSpec { scale, softcap } => step.scale_rows(ScaleRows {
            x: logits,
            rows,
            cols: spec.vocab_size,
            columns: 0..spec.vocab_size,
            scale,
            cap: softcap.map(Cap::Soft),
        }),
    }
}
