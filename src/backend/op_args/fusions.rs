//! Arguments of the fusions.

use super::{Norm, Rotation, Scoring, check_experts, check_gate, check_room, check_rotation, check_scores};
use crate::Backend;
use crate::Result;
use crate::shapes::{ExpertShape, MatrixShape};
use crate::specs::{Activation, QkvLayout};

/// See `Fusions::norm_linear`.
pub struct NormLinear<'a, B: Backend> {
    pub x: &'a B::Buffer,
    /// `None` uses the rows unchanged.
    pub norm: Option<Norm<'a, B>>,
    pub matrix: &'a B::Matrix,
    pub rows: usize,
    pub normed: &'a mut B::Buffer,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> NormLinear<'_, B> {
    pub fn validate(&self) -> Result<()> {
        let cols = self.matrix.cols();
        self.norm.map_or(Ok(()), |norm| norm.check(cols))?;
        check_room("norm_linear's input", self.x, self.rows, cols)?;
        check_room("norm_linear's buffer", self.normed, self.rows, cols)?;
        check_room("norm_linear's output", self.out, self.rows, self.matrix.rows())
    }
}

/// See `Fusions::norm_gated_linear`.
pub struct NormGatedLinear<'a, B: Backend> {
    pub x: &'a B::Buffer,
    /// `None` uses the rows unchanged.
    pub norm: Option<Norm<'a, B>>,
    /// Gate and up stacked, with the same number of rows.
    pub gate_up: &'a B::Matrix,
    pub activation: Activation,
    pub rows: usize,
    pub normed: &'a mut B::Buffer,
    pub products: &'a mut B::Buffer,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> NormGatedLinear<'_, B> {
    /// Returns the columns of the output.
    pub fn cols(&self) -> usize {
        self.gate_up.rows() / 2
    }

    pub fn validate(&self) -> Result<()> {
        let (hidden, products) = (self.gate_up.cols(), self.gate_up.rows());
        check_gate(self.activation)?;
        self.norm.map_or(Ok(()), |norm| norm.check(hidden))?;
        check_room("norm_gated_linear's input", self.x, self.rows, hidden)?;
        check_room("norm_gated_linear's buffer", self.normed, self.rows, hidden)?;
        check_room("gate and up", self.products, self.rows, products)?;
        check_room("norm_gated_linear's output", self.out, self.rows, self.cols())
    }
}

/// See `Fusions::norm_experts`.
pub struct NormExperts<'a, B: Backend> {
    pub norm: Norm<'a, B>,
    pub experts: &'a B::Experts,
    pub rows: usize,
    pub normed: &'a mut B::Buffer,
    pub work: &'a mut B::ExpertWork,
    pub residual: &'a mut B::Buffer,
}

impl<B: Backend> NormExperts<'_, B> {
    pub fn validate(&self) -> Result<()> {
        check_experts::<B>(self.experts, self.work, self.rows)?;
        let hidden = self.experts.spec().hidden_size;
        self.norm.check(hidden)?;
        check_room("the experts' buffer", self.normed, self.rows, hidden)?;
        check_room("the residual", self.residual, self.rows, hidden)
    }
}

/// See `Fusions::rope_attention`.
pub struct RopeAttention<'a, B: Backend> {
    pub qkv: &'a mut B::Buffer,
    pub layout: QkvLayout,
    pub rotation: Rotation<'a, B>,
    pub scoring: Scoring,
    pub sinks: Option<&'a B::Vector>,
    /// See `Attention::biases`.
    pub biases: Option<&'a B::Vector>,
    pub group: usize,
    pub kv: &'a mut B::KvLayer,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> RopeAttention<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        check_rotation(self.layout, &self.rotation, self.kv, tokens)?;
        check_scores(self.layout, self.scoring, self.sinks, self.biases)?;
        check_room("qkv", self.qkv, tokens, self.layout.cols())?;
        check_room("attention's output", self.out, tokens, self.layout.out_cols())
    }
}
