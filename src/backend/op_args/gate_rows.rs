//! Arguments of the op that multiplies each row by its gate.

use super::{Norm, check_room};
use crate::Backend;
use crate::shapes::VectorShape;
use crate::specs::NormKind;
use crate::{Error, Result};

/// See `Ops::gate_rows`.
pub struct GateRows<'a, B: Backend> {
    /// Rows that the gates are computed from, as long as `weight`.
    pub x: &'a B::Buffer,
    /// An RMS norm without a bias; `None` uses the rows unchanged.
    pub norm: Option<Norm<'a, B>>,
    pub weight: &'a B::Vector,
    pub rows: usize,
    /// Columns of the rows in `out`.
    pub cols: usize,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> GateRows<'_, B> {
    pub fn validate(&self) -> Result<()> {
        let hidden = self.weight.elements();
        if let Some(norm) = self.norm {
            norm.check(hidden)?;
            if norm.kind != NormKind::Rms || norm.bias.is_some() {
                return Err(Error::internal(format!("a gate of rows behind a norm of kind {:?}", norm.kind)));
            }
        }
        check_room("the rows of a gate", self.x, self.rows, hidden)?;
        check_room("the rows that are gated", self.out, self.rows, self.cols)
    }
}
