//! Arguments of the op that multiplies each head of a row by its gate.

use super::check_room;
use crate::Backend;
use crate::Result;
use crate::specs::GateFunction;

/// See `Ops::gate_heads`.
pub struct GateHeads<'a, B: Backend> {
    /// `[rows, heads]`.
    pub gate: &'a B::Buffer,
    pub function: GateFunction,
    pub rows: usize,
    pub heads: usize,
    /// Columns of a head of `out`.
    pub cols: usize,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> GateHeads<'_, B> {
    pub fn validate(&self) -> Result<()> {
        check_room("the gates of heads", self.gate, self.rows, self.heads)?;
        check_room("the heads that are gated", self.out, self.rows, self.heads.saturating_mul(self.cols))
    }
}
