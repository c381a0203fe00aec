//! Arguments of the op that scales and caps rows.

use std::ops::Range;

use super::check_room;
use crate::Backend;
use crate::{Error, Result};

/// Keeps values within bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cap {
    /// `cap * tanh(x / cap)`.
    Soft(f32),
    /// The nearest value from the first to the second.
    Hard([f32; 2]),
}

/// See `Ops::scale_rows`.
pub struct ScaleRows<'a, B: Backend> {
    pub x: &'a mut B::Buffer,
    pub rows: usize,
    pub cols: usize,
    /// The columns to change.
    pub columns: Range<usize>,
    pub scale: f32,
    pub cap: Option<Cap>,
}

impl<B: Backend> ScaleRows<'_, B> {
    pub fn validate(&self) -> Result<()> {
        if self.columns.start > self.columns.end || self.columns.end > self.cols {
            return Err(Error::internal(format!("columns {:?} of {} are scaled", self.columns, self.cols)));
        }
        check_room("the values that are scaled", self.x, self.rows, self.cols)
    }
}
