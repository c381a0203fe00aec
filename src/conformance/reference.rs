//! References in f64 for norms and activations, shared by several cases.

use crate::backend::{Activation, NormKind, Xielu};

/// A norm of rows that are as long as the weights.
pub(super) struct HostNorm<'a> {
    pub(super) kind: NormKind,
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) eps: f32,
}

impl HostNorm<'_> {
    pub(super) fn of(&self, x: &[f64]) -> Vec<f64> {
        x.chunks(self.weight.len()).flat_map(|row| self.of_row(row)).collect()
    }

    fn of_row(&self, row: &[f64]) -> Vec<f64> {
        let average = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / row.len() as f64;
        let mean = match self.kind {
            NormKind::Rms | NormKind::Weights => 0.0,
            NormKind::Layer => average(&mut row.iter().copied()),
        };
        let square = average(&mut row.iter().map(|x| (x - mean).powi(2)));
        let scale = match self.kind {
            NormKind::Rms | NormKind::Layer => 1.0 / (square + f64::from(self.eps)).sqrt(),
            NormKind::Weights => 1.0,
        };
        let bias = |i: usize| self.bias.map_or(0.0, |bias| f64::from(bias[i]));
        row.iter()
            .zip(self.weight)
            .enumerate()
            .map(|(i, (x, &w))| (x - mean) * scale * f64::from(w) + bias(i))
            .collect()
    }
}

/// Returns an activation without a gate.
pub(super) fn plain(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)),
        Activation::ClampedSwiglu => {
            let gate = x.min(7.0);
            gate / (1.0 + (-1.702 * gate).exp())
        }
        Activation::ClampedSilu { limit } => plain(Activation::Silu, x).min(f64::from(limit)),
        Activation::Relu => x.max(0.0),
        Activation::SquaredRelu => x.max(0.0).powi(2),
        Activation::Xielu(Xielu { positive, negative, slope, eps }) => {
            let bent = match x > 0.0 {
                true => f64::from(positive) * x * x,
                false => f64::from(negative) * (x.min(f64::from(eps)).exp_m1() - x),
            };
            bent + f64::from(slope) * x
        }
    }
}

/// Returns an activation of a gate and of `up`, the value that passes through the gate.
pub(super) fn gated(activation: Activation, gate: f64, up: f64) -> f64 {
    let up = match activation {
        Activation::ClampedSwiglu => up.clamp(-7.0, 7.0) + 1.0,
        Activation::ClampedSilu { limit } => up.clamp(-f64::from(limit), f64::from(limit)),
        _ => up,
    };
    plain(activation, gate) * up
}
