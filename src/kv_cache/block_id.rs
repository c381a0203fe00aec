//! The index of a block in its group's pool.

use crate::batch::NULL_BLOCK;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Placeholder in a block table for a block that has left a sliding window.
    pub const NULL: Self = Self(NULL_BLOCK);

    pub fn is_null(self) -> bool {
        self == Self::NULL
    }

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}
