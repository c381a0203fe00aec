//! All uploads of a loader as data, so that their memory can be counted before the first one.

use super::{ExpertTensors, LinearPart, RopeSpec};
use crate::tensor::TensorView;

/// One call of a loader's `upload_matrix`, `upload_heads`, `upload_experts`, `upload_vector`, `upload_constant`,
/// `upload_taps` or `upload_rope`.
#[derive(Debug, Clone)]
pub enum Upload<'a> {
    Matrix(Vec<LinearPart<'a>>),
    /// The matrices of this many heads.
    Heads(TensorView<'a>, usize),
    Experts(Box<ExpertTensors<'a>>),
    Vector(TensorView<'a>),
    /// A vector of this many equal elements.
    Constant(usize),
    Taps(TensorView<'a>),
    Rope(RopeSpec),
}
