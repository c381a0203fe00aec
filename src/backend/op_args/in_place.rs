//! Arguments of the ops that change rows in place.

use super::{Norm, check_room};
use crate::Backend;
use crate::batch::Batch;
use crate::check_batch::check_positions;
use crate::shapes::VectorShape;
use crate::{Error, Result};

/// See `Ops::norm_in_place`.
pub struct NormInPlace<'a, B: Backend> {
    pub x: &'a mut B::Buffer,
    pub norm: Norm<'a, B>,
    pub rows: usize,
}

impl<B: Backend> NormInPlace<'_, B> {
    pub fn cols(&self) -> usize {
        self.norm.weight.elements()
    }

    pub fn validate(&self) -> Result<()> {
        self.norm.check(self.cols())?;
        check_room("rows that are normed in place", self.x, self.rows, self.cols())
    }
}

/// Chooses the row of a table for each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableRow {
    /// The row of the token's position.
    OfPosition,
    First,
    /// The second row for tokens after the first occurrence of this token in their sequence, the first row for all
    /// others. Sequences must be computed in one step, from their beginning.
    SecondBehind(u32),
}

impl TableRow {
    /// Checks that each token of a step has its row.
    ///
    /// # Errors
    /// `Error::Internal` if a token has no row, or if a sequence does not start in the step.
    pub fn check(self, batch: &Batch, table_rows: usize) -> Result<()> {
        let is_whole = |seq| {
            let positions = &batch.positions[batch.tokens_of(seq)];
            (0..).zip(positions).all(|(index, &position): (u32, _)| index == position)
        };
        match self {
            Self::OfPosition => check_positions(batch, table_rows),
            Self::First => Ok(()),
            Self::SecondBehind(_) if table_rows < 2 => Err(Error::internal("one row for the texts of a pair")),
            Self::SecondBehind(_) => match (0..batch.num_seqs()).find(|&seq| !is_whole(seq)) {
                Some(seq) => Err(Error::internal(format!("sequence {seq} does not begin in the step"))),
                None => Ok(()),
            },
        }
    }
}

/// See `Ops::add_rows`.
pub struct AddRows<'a, B: Backend> {
    /// Rows of `cols`, contiguous.
    pub table: &'a B::Vector,
    pub cols: usize,
    pub row: TableRow,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> AddRows<'_, B> {
    /// Returns the rows of the table.
    pub fn table_rows(&self) -> usize {
        self.table.elements() / self.cols.max(1)
    }

    pub fn validate(&self, tokens: usize) -> Result<()> {
        let elements = self.table.elements();
        if self.table_rows() == 0 || !elements.is_multiple_of(self.cols) {
            return Err(Error::internal(format!("a table of {elements} elements for rows of {}", self.cols)));
        }
        check_room("what rows of a table are added to", self.out, tokens, self.cols)
    }
}
