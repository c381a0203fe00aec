//! Per-layer inputs: computed once per step, and added at the end of each layer.

use super::{Input, Stream, Work, linear_of};
use crate::backend::{Backend, Embed, GateColumns, Linear, Ops, STREAMS};
use crate::layers::{InputWeights, InputsWeights};
use crate::{Error, Result};

/// `inputs = scale * row`, with the row of each token.
pub(super) fn look_up<B: Backend>(
    step: &mut B::Step<'_>,
    InputsWeights { spec, table, .. }: &InputsWeights<B>,
    stream: &mut Stream<B>,
) -> Result<()> {
    let out = stream.inputs.as_mut().ok_or_else(without_buffers)?;
    step.embed(Embed { table, scale: spec.scale, out })
}

fn without_buffers() -> Error {
    Error::internal("inputs of layers without their buffers")
}

/// `inputs += norm(projection · x)`. x is the embeddings, and each layer's part is normed separately.
pub(super) fn add_projected<B: Backend>(
    step: &mut B::Step<'_>,
    InputsWeights { projection, norm, num_layers, .. }: &InputsWeights<B>,
    stream: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let (Stream { residual, inputs: Some(inputs), .. }, Some([products, _])) = (stream, &mut work.dense) else {
        return Err(without_buffers());
    };
    let rows = step.num_tokens();
    step.linear(Linear { x: residual, matrix: projection, rows, out: products, add: false })?;
    norm.add_to(step, products, rows * num_layers, inputs)
}

/// `sum += norm(projection · (act(gate · factors * residual) * input))`. The sum is the residual, or each of the other
/// streams.
pub(super) fn add<B: Backend>(
    step: &mut B::Step<'_>,
    weights: &InputWeights<B>,
    inputs: &B::Buffer,
    rows: usize,
    (residual, others): (&mut B::Buffer, Option<&mut [B::Buffer; STREAMS - 1]>),
    work: &mut Work<B>,
) -> Result<()> {
    let &InputWeights { spec, ref factors, ref gate, ref projection, ref norm, first, row_cols: x_cols } = weights;
    let Work { normed: product, dense: Some([gates, gated]), .. } = work else {
        return Err(Error::internal("the input of a layer without its buffers"));
    };
    let (activation, cols) = (spec.activation, spec.size);
    linear_of(step, Input { x: residual, norm: factors.as_ref(), rows }, gate, product, gates)?;
    let columns = GateColumns { gate: gates, x: inputs, x_cols, first, activation, rows, cols, out: gated };
    step.gate_columns(columns)?;
    step.linear(Linear { x: gated, matrix: projection, rows, out: product, add: false })?;
    match others {
        Some(others) => others.iter_mut().try_for_each(|other| norm.add_to(step, product, rows, other)),
        None => norm.add_to(step, product, rows, residual),
    }
}
