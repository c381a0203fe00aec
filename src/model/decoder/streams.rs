//! Several hidden streams per token. The residual is the active stream. A layer predicts the streams from their values
//! before it, and corrects them after it.

use super::{Input, NormWeights, Stream, Work, linear_of};
use crate::backend::{AddNorm, Backend, LevelRows, Linear, MatrixShape, Ops, STREAMS, Streams};
use crate::buffers::StreamBuffers;
use crate::layers::{StreamWeights, StreamsWeights};
use crate::{Error, Result};

/// The least mean square of a row that is levelled.
const LEAST: f32 = 1e-5;

fn without_buffers() -> Error {
    Error::internal("hidden streams without their buffers")
}

/// Creates the streams from the embeddings: `other_k = matrix_k · residual`, with the level of the residual.
pub(super) fn create<B: Backend>(
    step: &mut B::Step<'_>,
    weights: &StreamsWeights<B>,
    Stream { residual: like, streams, .. }: &mut Stream<B>,
    Work { normed: product, .. }: &mut Work<B>,
) -> Result<()> {
    let StreamBuffers { others, .. } = streams.as_mut().ok_or_else(without_buffers)?;
    let rows = step.num_tokens();
    for (matrix, out) in weights.created.iter().zip(others) {
        step.linear(Linear { x: like, matrix, rows, out: product, add: false })?;
        step.level_rows(LevelRows { x: product, like, rows, cols: matrix.rows(), least: LEAST, out })?;
    }
    Ok(())
}

/// Unites the streams in the residual: the mean of the residual and of each `matrix_k · other_k`, with its level.
pub(super) fn unite<B: Backend>(
    step: &mut B::Step<'_>,
    weights: &StreamsWeights<B>,
    rows: usize,
    Stream { residual, streams, .. }: &mut Stream<B>,
    Work { normed: product, .. }: &mut Work<B>,
) -> Result<()> {
    let StreamBuffers { others, .. } = streams.as_mut().ok_or_else(without_buffers)?;
    for (matrix, other) in weights.united.iter().zip(&mut *others) {
        step.linear(Linear { x: other, matrix, rows, out: product, add: false })?;
        let (x, like) = (&*product, &*residual);
        step.level_rows(LevelRows { x, like, rows, cols: matrix.rows(), least: LEAST, out: other })?;
    }
    let norm = weights.sum.norm();
    for (index, x) in others.iter().enumerate() {
        let factor = if index + 2 == STREAMS { 1.0 / STREAMS as f32 } else { 1.0 };
        step.add_norm(AddNorm { x, norm, rows, out: residual, factor })?;
    }
    Ok(())
}

/// Predicts the streams that a layer begins with.
pub(super) fn predict<B: Backend>(
    step: &mut B::Step<'_>,
    weights: &StreamWeights<B>,
    rows: usize,
    Stream { residual, streams, .. }: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let StreamBuffers { predicted, others } = streams.as_mut().ok_or_else(without_buffers)?;
    let routed = route(step, weights, rows, residual, work)?;
    let (weight, cols) = (&weights.prediction, weights.router.cols());
    let scale = 1.0 / cols as f32;
    step.predict_streams(Streams { routed, weight, scale, rows, cols, active: residual, predicted, others })
}

/// Corrects the streams after a layer has changed the residual.
pub(super) fn correct<B: Backend>(
    step: &mut B::Step<'_>,
    weights: &StreamWeights<B>,
    rows: usize,
    residual: &mut B::Buffer,
    StreamBuffers { predicted, others }: &mut StreamBuffers<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let routed = route(step, weights, rows, residual, work)?;
    let (weight, cols) = (&weights.correction, weights.router.cols());
    let scale = 1.0 / cols as f32;
    step.correct_streams(Streams { routed, weight, scale, rows, cols, active: residual, predicted, others })
}

/// Returns the router's products of the residual.
fn route<'w, B: Backend>(
    step: &mut B::Step<'_>,
    StreamWeights { router, router_norm, .. }: &StreamWeights<B>,
    rows: usize,
    residual: &B::Buffer,
    Work { normed, dense, .. }: &'w mut Work<B>,
) -> Result<&'w B::Buffer> {
    let [products, _] = dense.as_mut().ok_or_else(without_buffers)?;
    linear_of(step, Input { x: residual, norm: Some(router_norm), rows }, router, normed, products)?;
    Ok(products)
}

/// `residual += x + norm(right · left · x)` with `x = before(residual)`, before attention is added. `predicted` equals
/// the residual.
pub(super) fn add_laurel<B: Backend>(
    step: &mut B::Step<'_>,
    StreamWeights { laurel: [left, right], laurel_norm, .. }: &StreamWeights<B>,
    before: Option<&NormWeights<B>>,
    rows: usize,
    (predicted, residual): (&B::Buffer, &mut B::Buffer),
    Work { normed, dense, .. }: &mut Work<B>,
) -> Result<()> {
    let [product, short] = dense.as_mut().ok_or_else(without_buffers)?;
    let before = before.ok_or_else(|| Error::internal("hidden streams in a layer without a norm"))?;
    linear_of(step, Input { x: predicted, norm: Some(before), rows }, left, normed, short)?;
    step.linear(Linear { x: short, matrix: right, rows, out: product, add: false })?;
    before.add_to(step, predicted, rows, residual)?;
    laurel_norm.add_to(step, product, rows, residual)
}
