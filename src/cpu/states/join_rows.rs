//! Joins rows with the rows of the tokens before them.

use super::convolution::{Convolution, Inputs};
use super::first_slot;
use crate::batch::Batch;
use crate::pool::ThreadPool;
use crate::split::{Split, for_rows};
use crate::state_layer::StateLayer;

/// The arguments of one op except the states and the outputs.
pub(crate) struct JoinRows<'a> {
    /// `[n, cols]`.
    pub(crate) left: &'a [f32],
    pub(crate) right: &'a [f32],
    pub(crate) cols: usize,
    pub(crate) batch: &'a Batch,
}

impl JoinRows<'_> {
    /// Joins all rows into `out`, `[n, 2 * cols]`.
    pub(crate) fn run_on(&self, pool: &ThreadPool, state: Option<&mut StateLayer>, out: &mut [f32]) {
        let &Self { right, cols, batch, .. } = self;
        let row_of = |row: usize| &right[row * cols..][..cols];
        let Some(StateLayer { spec, windows, .. }) = state else {
            return self.join(pool, out, |row| Some(row_of(row)));
        };
        let kept = &windows[..];
        self.join(pool, out, |row| {
            let seq = batch.cu_seqlens_q.partition_point(|&start| start as usize <= row) - 1;
            match row > batch.tokens_of(seq).start {
                true => Some(row_of(row - 1)),
                false => first_slot(batch, seq).map(|slot| &kept[slot * cols..][..cols]),
            }
        });
        // A state is the last input of a convolution with two taps.
        let inputs = Inputs { x: right, cols, first: 0, factor: None };
        let convolution = Convolution { inputs, channels: cols, taps: &[], bias: None, batch };
        convolution.keep_windows(pool, spec, &Split::new(windows));
    }

    /// Joins each row with the row that `beside` returns for it, or with zeros.
    fn join<'r>(&self, pool: &ThreadPool, out: &mut [f32], beside: impl Fn(usize) -> Option<&'r [f32]> + Sync) {
        let &Self { left, cols, .. } = self;
        for_rows(pool, out, 2 * cols, |first, rows| {
            for (row, out) in (first..).zip(rows.chunks_exact_mut(2 * cols)) {
                let (of_left, of_right) = out.split_at_mut(cols);
                of_left.copy_from_slice(&left[row * cols..][..cols]);
                match beside(row) {
                    Some(row) => of_right.copy_from_slice(row),
                    None => of_right.fill(0.0),
                }
            }
        });
    }
}
