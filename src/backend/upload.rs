//! Everything that a loader is asked to upload, as data, so that it can be counted before any of it is uploaded.

use super::{ExpertTensors, LinearPart, RopeSpec};
use crate::tensor::TensorView;

/// One call of a loader's `upload_matrix`, `upload_heads`, `upload_experts`, `upload_vector`, `upload_taps` or
/// `upload_rope`.
#[derive(Debug, Clone)]
pub enum Upload<'a> {
    Matrix(Vec<LinearPart<'a>>),
    /// Matrices of heads, so many of them.
    Heads(TensorView<'a>, usize),
    Experts(Box<ExpertTensors<'a>>),
    Vector(TensorView<'a>),
    Taps(TensorView<'a>),
    Rope(RopeSpec),
}
