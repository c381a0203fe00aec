//! Arguments of the ops for side branches of a layer, which have their own inputs and weighted sums.

use super::{Norm, check_gate, check_room};
use crate::Backend;
use crate::shapes::VectorShape;
use crate::specs::Activation;
use crate::{Error, Result};

/// See `Ops::add_norm`.
pub struct AddNorm<'a, B: Backend> {
    pub x: &'a B::Buffer,
    pub norm: Norm<'a, B>,
    pub rows: usize,
    pub out: &'a mut B::Buffer,
    pub factor: f32,
}

impl<B: Backend> AddNorm<'_, B> {
    pub fn cols(&self) -> usize {
        self.norm.weight.elements()
    }

    pub fn validate(&self) -> Result<()> {
        self.norm.check(self.cols())?;
        check_room("add_norm's input", self.x, self.rows, self.cols())?;
        check_room("add_norm's output", self.out, self.rows, self.cols())
    }
}

/// See `Ops::gate_columns`.
pub struct GateColumns<'a, B: Backend> {
    pub gate: &'a B::Buffer,
    pub x: &'a B::Buffer,
    /// Columns of a row of `x`, and the first column used.
    pub x_cols: usize,
    pub first: usize,
    pub activation: Activation,
    pub rows: usize,
    /// Columns of the gate and of the output.
    pub cols: usize,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> GateColumns<'_, B> {
    pub fn validate(&self) -> Result<()> {
        let Self { x_cols, first, rows, cols, .. } = *self;
        check_gate(self.activation)?;
        if first.checked_add(cols).is_none_or(|end| end > x_cols) {
            return Err(Error::internal(format!("{cols} columns from {first} on of rows of {x_cols}")));
        }
        check_room("the gate", self.gate, rows, cols)?;
        check_room("the columns that a gate lets pass", self.x, rows, x_cols)?;
        check_room("the gate's output", self.out, rows, cols)
    }
}
