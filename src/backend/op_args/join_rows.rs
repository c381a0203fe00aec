//! Arguments of the op that joins two rows into one.

use super::check_room;
use crate::Backend;
use crate::shapes::StateShape;
use crate::states::StateLayerSpec;
use crate::{Error, Result};

/// See `Ops::join_rows`.
pub struct JoinRows<'a, B: Backend> {
    /// `[tokens, cols]`.
    pub left: &'a B::Buffer,
    /// `[tokens, cols]`.
    pub right: &'a B::Buffer,
    pub cols: usize,
    /// Holds the last row of `right` of each sequence. `Some` joins each row with the row before it.
    pub previous: Option<&'a mut B::StateLayer>,
    /// `[tokens, 2 * cols]`.
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> JoinRows<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        let cols = self.cols;
        if let Some(spec) = self.previous.as_ref().map(|state| *state.spec())
            && (cols == 0 || spec != StateLayerSpec::of_row(spec.num_slots, cols))
        {
            return Err(Error::internal(format!("rows of {cols} joined with states of {spec:?}")));
        }
        check_room("the left half of joined rows", self.left, tokens, cols)?;
        check_room("the right half of joined rows", self.right, tokens, cols)?;
        check_room("joined rows", self.out, tokens, cols.saturating_mul(2))
    }
}
