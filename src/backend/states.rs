//! Layers that carry a state from token to token in place of keys and values, or beside them: what a pool keeps for
//! them, and the shapes of the three kinds that take the place of attention.

use crate::batch::{Batch, NO_STATE};
use crate::{Error, Result};

/// One layer's share of the pool of states. A slot holds the last inputs of a convolution, and a matrix of each head,
/// where the layer has heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayerSpec {
    pub num_slots: usize,
    /// Inputs of the convolution that are kept, one less than it has taps, each of `channels`.
    pub window: usize,
    pub channels: usize,
    /// Matrices of `key_size` rows of `value_size`.
    pub heads: usize,
    pub key_size: usize,
    pub value_size: usize,
}

impl StateLayerSpec {
    /// States that are the row of the token before.
    pub fn of_row(num_slots: usize, cols: usize) -> Self {
        Self { num_slots, window: 1, channels: cols, heads: 0, key_size: 0, value_size: 0 }
    }

    /// Numbers of the window of one slot.
    pub fn window_len(&self) -> usize {
        self.window * self.channels
    }

    /// Numbers of all matrices of one slot.
    pub fn matrices_len(&self) -> usize {
        self.heads * self.key_size * self.value_size
    }

    /// Bytes of one slot: all numbers are f32.
    pub fn slot_bytes(&self) -> u64 {
        let &Self { window, channels, heads, key_size, value_size, .. } = self;
        let product = |sizes: &[usize]| sizes.iter().fold(4u64, |product, &n| product.saturating_mul(n as u64));
        product(&[window, channels]).saturating_add(product(&[heads, key_size, value_size]))
    }

    /// Checks that each sequence of a batch has a state, and that slots are slots of the pool.
    ///
    /// # Errors
    /// `Error::Internal`: slots are given by the scheduler.
    pub fn check(&self, batch: &Batch) -> Result<()> {
        let (states, seqs) = (&batch.states, batch.num_seqs());
        if states.reads.len() != seqs {
            return Err(Error::internal(format!("{} states of {seqs} sequences", states.reads.len())));
        }
        let reads = states.reads.iter().filter(|&&slot| slot != NO_STATE);
        let mut slots = reads.copied().chain(states.writes.iter().map(|write| write.slot));
        match slots.find(|&slot| slot as usize >= self.num_slots) {
            Some(slot) => Err(Error::internal(format!("state {slot} is outside the pool of {} slots", self.num_slots))),
            None => Ok(()),
        }
    }
}

/// Which key head serves a value head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value head `j` has key head `j % key_heads`.
    Tiled,
    /// Value head `j` has key head `j / (value_heads / key_heads)`.
    Grouped,
}

/// The shape of a gated delta net, and how a row of its projections lies: `[q | k | v | z | gates]`, q and k of
/// `key_heads`, v and z of `value_heads`. A head has two gates: a number from which beta comes, and one from which its
/// decay does. They lie in runs: `gate_run` of the first kind, then as many of the second, and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetShape {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_size: usize,
    pub value_size: usize,
    /// Taps of the convolution over q, k and v.
    pub taps: usize,
    pub order: HeadOrder,
    pub gate_run: usize,
}

impl DeltaNetShape {
    /// The largest key and value size: devices keep parts of a head's matrix in registers, or in memory of a fixed
    /// size.
    pub const MAX_HEAD_SIZE: usize = 128;

    /// Columns of all q, or of all k.
    pub fn key_cols(self) -> usize {
        self.key_heads * self.key_size
    }

    /// Columns of all v, of all z, and of the output.
    pub fn value_cols(self) -> usize {
        self.value_heads * self.value_size
    }

    /// Columns that go through the convolution: q, k and v.
    pub fn channels(self) -> usize {
        2 * self.key_cols() + self.value_cols()
    }

    /// Columns of a row of projections.
    pub fn cols(self) -> usize {
        self.channels() + self.value_cols() + 2 * self.value_heads
    }

    /// Columns of the two gates of a value head.
    pub fn gates(self, head: usize) -> [usize; 2] {
        let first = self.channels() + self.value_cols();
        let beta = first + head / self.gate_run * 2 * self.gate_run + head % self.gate_run;
        [beta, beta + self.gate_run]
    }

    /// The key head of a value head.
    pub fn key_head(self, head: usize) -> usize {
        match self.order {
            HeadOrder::Tiled => head % self.key_heads,
            HeadOrder::Grouped => head / (self.value_heads / self.key_heads),
        }
    }

    /// A layer of such states in a pool of `num_slots`.
    pub fn state_layer(self, num_slots: usize) -> StateLayerSpec {
        let Self { value_heads: heads, key_size, value_size, taps, .. } = self;
        let (window, channels) = (taps.saturating_sub(1), self.channels());
        StateLayerSpec { num_slots, window, channels, heads, key_size, value_size }
    }

    /// # Errors `Error::Internal` unless nothing is empty or too large, value heads are a multiple of key heads, and
    /// gates come in whole runs.
    pub fn validate(self) -> Result<()> {
        let Self { key_heads, value_heads, key_size, value_size, taps, gate_run, .. } = self;
        let is_empty = [key_heads, value_heads, key_size, value_size, taps, gate_run].contains(&0);
        if is_empty
            || key_size.max(value_size) > Self::MAX_HEAD_SIZE
            || !value_heads.is_multiple_of(key_heads)
            || !value_heads.is_multiple_of(gate_run)
        {
            return Err(Error::internal(format!("{self:?} is no gated delta net")));
        }
        Ok(())
    }
}

/// The shape of a Mamba-2 mixer, and how a row of its projections lies: `[z | x | B | C | time steps]`, z and x of
/// `heads`, B and C of `groups`. A head has one number from which its time step comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba2Shape {
    pub heads: usize,
    pub head_size: usize,
    /// Groups of heads that have B and C, and the norm of their outputs, in common.
    pub groups: usize,
    /// Columns of B and C of a group: a head's matrix has as many rows.
    pub state_size: usize,
    /// Taps of the convolution over x, B and C.
    pub taps: usize,
}

impl Mamba2Shape {
    /// The largest number of rows of a head's matrix: devices keep parts of it in registers, or in memory of a fixed
    /// size.
    pub const MAX_STATE_SIZE: usize = 128;

    /// Columns of all z, of all x, and of the output.
    pub fn inner_cols(self) -> usize {
        self.heads * self.head_size
    }

    /// Columns of all B, or of all C.
    pub fn group_cols(self) -> usize {
        self.groups * self.state_size
    }

    /// Columns that go through the convolution: x, B and C.
    pub fn channels(self) -> usize {
        self.inner_cols() + 2 * self.group_cols()
    }

    /// Columns of a row of projections.
    pub fn cols(self) -> usize {
        self.inner_cols() + self.channels() + self.heads
    }

    /// Column of the number from which a head's time step comes.
    pub fn time_step(self, head: usize) -> usize {
        self.inner_cols() + self.channels() + head
    }

    /// The group of a head.
    pub fn group(self, head: usize) -> usize {
        head / (self.heads / self.groups)
    }

    /// A layer of such states in a pool of `num_slots`.
    pub fn state_layer(self, num_slots: usize) -> StateLayerSpec {
        let Self { heads, head_size: value_size, state_size: key_size, taps, .. } = self;
        let (window, channels) = (taps.saturating_sub(1), self.channels());
        StateLayerSpec { num_slots, window, channels, heads, key_size, value_size }
    }

    /// # Errors `Error::Internal` unless nothing is empty or too large, and heads are a multiple of groups.
    pub fn validate(self) -> Result<()> {
        let Self { heads, head_size, groups, state_size, taps } = self;
        let is_empty = [heads, head_size, groups, state_size, taps].contains(&0);
        if is_empty || state_size > Self::MAX_STATE_SIZE || !heads.is_multiple_of(groups) {
            return Err(Error::internal(format!("{self:?} is no Mamba-2 mixer")));
        }
        Ok(())
    }
}

/// The shape of a short convolution between two gates. A row of its projections is `[B | C | x]`, each of `channels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvolutionShape {
    pub channels: usize,
    pub taps: usize,
}

impl ShortConvolutionShape {
    /// Columns of a row of projections.
    pub fn cols(self) -> usize {
        3 * self.channels
    }

    /// A layer of such states in a pool of `num_slots`: the products of B and x of the last tokens.
    pub fn state_layer(self, num_slots: usize) -> StateLayerSpec {
        let Self { channels, taps } = self;
        let window = taps.saturating_sub(1);
        StateLayerSpec { num_slots, window, channels, heads: 0, key_size: 0, value_size: 0 }
    }

    /// # Errors `Error::Internal` unless nothing is empty.
    pub fn validate(self) -> Result<()> {
        match self.channels == 0 || self.taps == 0 {
            true => Err(Error::internal(format!("{self:?} is no short convolution"))),
            false => Ok(()),
        }
    }
}
