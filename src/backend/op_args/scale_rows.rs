//! Arguments of the op that scales and caps rows.

use super::check_room;
use crate::Result;
use crate::backend::Backend;

/// Keeps values within bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cap {
    /// `cap * tanh(x / cap)`.
    Soft(f32),
    /// The nearest value in `-cap ..= cap`.
    Hard(f32),
}

/// See `Ops::scale_rows`.
pub struct ScaleRows<'a, B: Backend> {
    pub x: &'a mut B::Buffer,
    pub rows: usize,
    pub cols: usize,
    pub scale: f32,
    pub cap: Option<Cap>,
}

impl<B: Backend> ScaleRows<'_, B> {
    pub fn validate(&self) -> Result<()> {
        check_room("the values that are scaled", self.x, self.rows, self.cols)
    }
}
