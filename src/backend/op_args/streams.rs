//! Arguments of the ops for several hidden streams per token, and for sparse feed-forwards.

use super::{check_room, check_vector};
use crate::Backend;
use crate::Result;
use crate::specs::STREAMS;

/// See `Ops::sparsify`.
pub struct Sparsify<'a, B: Backend> {
    /// `[rows, 2 * cols]`.
    pub x: &'a mut B::Buffer,
    pub rows: usize,
    pub cols: usize,
    pub deviations: f32,
}

impl<B: Backend> Sparsify<'_, B> {
    pub fn validate(&self) -> Result<()> {
        check_room("the gates that are made sparse", self.x, self.rows, self.cols.saturating_mul(2))
    }
}

/// See `Ops::level_rows`.
pub struct LevelRows<'a, B: Backend> {
    pub x: &'a B::Buffer,
    pub like: &'a B::Buffer,
    pub rows: usize,
    pub cols: usize,
    pub least: f32,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> LevelRows<'_, B> {
    pub fn validate(&self) -> Result<()> {
        let &Self { rows, cols, .. } = self;
        check_room("the rows that are levelled", self.x, rows, cols)?;
        check_room("the rows of the wanted level", self.like, rows, cols)?;
        check_room("the levelled rows", self.out, rows, cols)
    }
}

/// The hidden streams of tokens; see `Ops::predict_streams` and `Ops::correct_streams`.
pub struct Streams<'a, B: Backend> {
    /// `[rows, STREAMS]`.
    pub routed: &'a B::Buffer,
    /// A row of `STREAMS` numbers for each coefficient. A prediction has `STREAMS` coefficients per stream, and a
    /// correction has one.
    pub weight: &'a B::Vector,
    pub scale: f32,
    pub rows: usize,
    pub cols: usize,
    /// `[rows, cols]`, as are all streams.
    pub active: &'a mut B::Buffer,
    pub predicted: &'a mut B::Buffer,
    pub others: &'a mut [B::Buffer; STREAMS - 1],
}

impl<B: Backend> Streams<'_, B> {
    /// `coefficients` is the number of coefficients per stream.
    pub fn validate(&self, coefficients: usize) -> Result<()> {
        let &Self { rows, cols, .. } = self;
        check_vector("coefficients of streams", self.weight, coefficients * STREAMS * STREAMS)?;
        check_room("the router of streams", self.routed, rows, STREAMS)?;
        let own = [&*self.active, &*self.predicted].into_iter();
        own.chain(&*self.others).try_for_each(|stream| check_room("a stream", stream, rows, cols))
    }
}
