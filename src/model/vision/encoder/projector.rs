//! The projector: from the patches after the last layer to rows for the text model.

use super::{Buffers, Model};
use crate::Result;
use crate::backend::{
    Activate, Activation, Backend, Fusions, GatedActivation, Linear, MatrixShape, NormLinear, NormRows, Ops,
};
use crate::batch::Batch;
use crate::vision::tensors::{GatedProjector, Merger, Norm, Projector};

impl<B: Backend> Model<B> {
    /// `out = second · gelu(first · norm(x))`, where x has a row for each square.
    pub(super) fn merge(
        &self,
        step: &mut B::Step<'_>,
        x: &B::Buffer,
        Merger { norm, first, second }: &Merger<B::Matrix, B::Vector>,
        patches: usize,
        [normed, products, gated]: &mut [B::Buffer; 3],
        out: &mut B::Buffer,
    ) -> Result<()> {
        let rows = patches / self.spec.patches_per_row();
        let norm = norm.as_ref().map(Norm::of);
        step.norm_linear(NormLinear { x, norm, matrix: first, rows, normed, out: &mut *products })?;
        let (activation, cols) = (Activation::GeluErf, first.rows());
        step.activation(Activate { x: products, activation, rows, cols, out: &mut *gated })?;
        step.linear(Linear { x: gated, matrix: second, rows, out, add: false })
    }

    /// Computes `x = gelu(norm(first · square · x))`, then `out = down · (silu(gate · x) * (up · x))`.
    fn project_gated(
        &self,
        step: &mut B::Step<'_>,
        x: &B::Buffer,
        GatedProjector { square, first, norm, gate_up, down }: &GatedProjector<B::Matrix, B::Vector>,
        rows: usize,
        [normed, products, gated]: &mut [B::Buffer; 3],
        out: &mut B::Buffer,
    ) -> Result<()> {
        let (output, inner) = (self.spec.output_size, self.spec.inner_size);
        step.linear(Linear { x, matrix: square, rows, out: &mut *gated, add: false })?;
        step.linear(Linear { x: gated, matrix: first, rows, out: &mut *products, add: false })?;
        step.norm_rows(NormRows { x: products, norm: norm.of(), rows, out: &mut *normed })?;
        let activation = Activation::GeluErf;
        step.activation(Activate { x: normed, activation, rows, cols: output, out: &mut *gated })?;
        step.linear(Linear { x: gated, matrix: gate_up, rows, out: &mut *products, add: false })?;
        let activation = self.spec.feed_forward.activation();
        step.gated_activation(GatedActivation { gate_up: products, activation, rows, cols: inner, out: &mut *gated })?;
        step.linear(Linear { x: gated, matrix: down, rows, out, add: false })
    }

    /// Computes the rows for the text model from the output of the last layer.
    pub(super) fn project(
        &self,
        backend: &mut B,
        batch: &Batch,
        buffers: &mut Buffers<B>,
        standard: Option<&[Vec<f32>; 2]>,
    ) -> Result<()> {
        let (patches, cols) = (batch.num_tokens(), self.spec.hidden_size);
        backend.step_apart(batch, &mut |step: &mut B::Step<'_>| {
            let Buffers { residual, normed, mixed, joined, out, .. } = &mut *buffers;
            let mut x = &*residual;
            if let Some(norm) = &self.weights.last_norm {
                step.norm_rows(NormRows { x, norm: norm.of(), rows: patches, out: &mut *normed })?;
                x = normed;
            }
            let rows = patches / self.spec.patches_per_row();
            let (first, merger) = match &self.weights.projector {
                Projector::Mean { .. } => return Ok(()),
                Projector::Matrix(matrix) => {
                    return step.linear(Linear { x, matrix, rows, out: &mut out[0], add: false });
                }
                Projector::Gated(projector) => {
                    return self.project_gated(step, x, projector, rows, joined, &mut out[0]);
                }
                Projector::Joined { first, merger } => (first, merger),
            };
            if let Some(matrix) = first {
                step.linear(Linear { x, matrix, rows, out: &mut *mixed, add: false })?;
                x = mixed;
            }
            self.merge(step, x, merger, patches, joined, &mut out[0])
        })?;
        let Projector::Mean { norm, matrix } = &self.weights.projector else { return Ok(()) };
        let Buffers { residual, normed, out, .. } = buffers;
        let last = if self.weights.last_norm.is_some() { &*normed } else { &*residual };
        let mut means = means(backend.to_host(last, patches, cols)?, cols, self.spec.patches_per_row());
        if norm.is_none() {
            means.chunks_exact_mut(cols).for_each(|mean| standardize(mean, standard, self.spec.norm.eps));
        }
        backend.write_rows(residual, 0, &means, cols)?;
        let rows = means.len() / cols;
        backend.step_apart(batch, &mut |step: &mut B::Step<'_>| {
            let (norm, normed) = (norm.as_ref().map(Norm::of), &mut *normed);
            step.norm_linear(NormLinear { x: residual, norm, matrix, rows, normed, out: &mut out[0] })
        })
    }
}

/// Computes `x = (sqrt(n) x - bias) * scale`, then divides x by its root mean square.
fn standardize(x: &mut [f32], standard: Option<&[Vec<f32>; 2]>, eps: f32) {
    let root = (x.len() as f32).sqrt();
    x.iter_mut().for_each(|x| *x *= root);
    if let Some([bias, scale]) = standard {
        x.iter_mut().zip(bias.iter().zip(scale)).for_each(|(x, (bias, scale))| *x = (*x - bias) * scale);
    }
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let factor = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter_mut().for_each(|x| *x *= factor as f32);
}

/// Returns the means of each `of` consecutive rows.
fn means(rows: &[f32], cols: usize, of: usize) -> Vec<f32> {
    let mean = |square: &[f32]| -> Vec<f32> {
        let mut sums = vec![0.0; cols];
        for row in square.chunks_exact(cols) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        sums.iter().map(|sum| sum / of as f32).collect()
    };
    rows.chunks_exact(of * cols).flat_map(mean).collect()
}
