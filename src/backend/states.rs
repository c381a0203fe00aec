//! Layers with a recurrent state, which passes from token to token instead of keys and values, or next to them. Defines
//! their part of the state pool, and the shapes of the kinds that replace attention.

use crate::batch::{Batch, NO_STATE};
use crate::{Error, Result};

/// One layer of the state pool. A slot holds the last inputs of a convolution, and one matrix per head if the layer has
/// heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLayerSpec {
    pub num_slots: usize,
    /// The number of convolution inputs kept, one less than the taps. Each input has `channels` numbers.
    pub window: usize,
    pub channels: usize,
    /// The number of matrices; each has `key_size` rows of `value_size`.
    pub heads: usize,
    pub key_size: usize,
    pub value_size: usize,
}

impl StateLayerSpec {
    /// Returns a spec whose state is the previous token's row.
    pub fn of_row(num_slots: usize, cols: usize) -> Self {
        Self { num_slots, window: 1, channels: cols, heads: 0, key_size: 0, value_size: 0 }
    }

    /// Returns the numbers in the convolution window of one slot.
    pub fn window_len(&self) -> usize {
        self.window * self.channels
    }

    /// Returns the numbers in all matrices of one slot.
    pub fn matrices_len(&self) -> usize {
        self.heads * self.key_size * self.value_size
    }

    /// Returns the bytes of one slot; all numbers are f32.
    pub fn slot_bytes(&self) -> u64 {
        let &Self { window, channels, heads, key_size, value_size, .. } = self;
        let product = |sizes: &[usize]| sizes.iter().fold(4u64, |product, &n| product.saturating_mul(n as u64));
        product(&[window, channels]).saturating_add(product(&[heads, key_size, value_size]))
    }

    /// Checks that each sequence of a batch has a state and that all slots are inside the pool.
    ///
    /// # Errors
    /// `Error::Internal`, since only the scheduler chooses slots.
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

/// The mapping from a value head to its key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOrder {
    /// Value head `j` uses key head `j % key_heads`.
    Tiled,
    /// Value head `j` uses key head `j / (value_heads / key_heads)`.
    Grouped,
}

/// The shape of a gated delta net. A row of its projections is `[q | k | v | z | gates]`: q and k have `key_heads`
/// heads, v and z have `value_heads`. Each value head has two gates, one for beta and one for its decay. The gates
/// alternate in runs: `gate_run` gates for beta, then `gate_run` for the decay, and so on.
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
    /// The largest key and value size. Devices keep parts of a head's matrix in registers or in memory of fixed size.
    pub const MAX_HEAD_SIZE: usize = 128;

    /// Returns the columns of all q, or of all k.
    pub fn key_cols(self) -> usize {
        self.key_heads * self.key_size
    }

    /// Returns the columns of all v, of all z, and of the output.
    pub fn value_cols(self) -> usize {
        self.value_heads * self.value_size
    }

    /// Returns the columns that go through the convolution: q, k and v.
    pub fn channels(self) -> usize {
        2 * self.key_cols() + self.value_cols()
    }

    /// Returns the columns of a row of projections.
    pub fn cols(self) -> usize {
        self.channels() + self.value_cols() + 2 * self.value_heads
    }

    /// Returns the columns of the two gates of a value head: beta, then decay.
    pub fn gates(self, head: usize) -> [usize; 2] {
        let first = self.channels() + self.value_cols();
        let beta = first + head / self.gate_run * 2 * self.gate_run + head % self.gate_run;
        [beta, beta + self.gate_run]
    }

    /// Returns the key head of a value head.
    pub fn key_head(self, head: usize) -> usize {
        match self.order {
            HeadOrder::Tiled => head % self.key_heads,
            HeadOrder::Grouped => head / (self.value_heads / self.key_heads),
        }
    }

    /// Returns the spec of such a layer in a pool of `num_slots`.
    pub fn state_layer(self, num_slots: usize) -> StateLayerSpec {
        let Self { value_heads: heads, key_size, value_size, taps, .. } = self;
        let (window, channels) = (taps.saturating_sub(1), self.channels());
        StateLayerSpec { num_slots, window, channels, heads, key_size, value_size }
    }

    /// # Errors
    /// `Error::Internal` if a size is zero or too large. Value heads must be a multiple of key heads, and gates must
    /// fill whole runs.
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

/// The shape of a Mamba-2 mixer. A row of its projections is `[z | x | B | C | time steps]`: z and x have `heads`
/// heads, B and C have `groups` groups. Each head has one time step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba2Shape {
    pub heads: usize,
    pub head_size: usize,
    /// The number of head groups. The heads of a group share B and C, and the norm of their outputs.
    pub groups: usize,
    /// Columns of B and C of a group, which is also the number of rows of a head's matrix.
    pub state_size: usize,
    /// Taps of the convolution over x, B and C.
    pub taps: usize,
}

impl Mamba2Shape {
    /// The largest number of rows of a head's matrix. Devices keep parts of it in registers or in memory of fixed size.
    pub const MAX_STATE_SIZE: usize = 256;

    /// Returns the columns of all z, of all x, and of the output.
    pub fn inner_cols(self) -> usize {
        self.heads * self.head_size
    }

    /// Returns the columns of all B, or of all C.
    pub fn group_cols(self) -> usize {
        self.groups * self.state_size
    }

    /// Returns the columns that go through the convolution: x, B and C.
    pub fn channels(self) -> usize {
        self.inner_cols() + 2 * self.group_cols()
    }

    /// Returns the columns of a row of projections.
    pub fn cols(self) -> usize {
        self.inner_cols() + self.channels() + self.heads
    }

    /// Returns the column of a head's time step.
    pub fn time_step(self, head: usize) -> usize {
        self.inner_cols() + self.channels() + head
    }

    /// Returns the group of a head.
    pub fn group(self, head: usize) -> usize {
        head / (self.heads / self.groups)
    }

    /// Returns the spec of such a layer in a pool of `num_slots`.
    pub fn state_layer(self, num_slots: usize) -> StateLayerSpec {
        let Self { heads, head_size: value_size, state_size: key_size, taps, .. } = self;
        let (window, channels) = (taps.saturating_sub(1), self.channels());
        StateLayerSpec { num_slots, window, channels, heads, key_size, value_size }
    }

    /// # Errors
    /// `Error::Internal` if a size is zero or too large, or heads are not a multiple of groups.
    pub fn validate(self) -> Result<()> {
        let Self { heads, head_size, groups, state_size, taps } = self;
        let is_empty = [heads, head_size, groups, state_size, taps].contains(&0);
        if is_empty || state_size > Self::MAX_STATE_SIZE || !heads.is_multiple_of(groups) {
            return Err(Error::internal(format!("{self:?} is no Mamba-2 mixer")));
        }
        Ok(())
    }
}

/// The shape of a Mamba mixer of the first version. A row of its projections is `[x | z]`, each with `channels`
/// columns. The state is one matrix with a column for each channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MambaShape {
    pub channels: usize,
    /// Elements of B and C, which is also the number of rows of the matrix.
    pub state_size: usize,
    /// Taps of the convolution over x.
    pub taps: usize,
}

impl MambaShape {
    /// The largest number of rows of the matrix; all known models have 16. Devices keep parts of it in registers.
    pub const MAX_STATE_SIZE: usize = 32;

    /// Returns the columns of a row of projections.
    pub fn cols(self) -> usize {
        2 * self.channels
    }

    /// Returns the spec of such a layer in a pool of `num_slots`.
    pub fn state_layer(self, num_slots: usize) -> StateLayerSpec {
        let Self { channels, state_size: key_size, taps } = self;
        let window = taps.saturating_sub(1);
        StateLayerSpec { num_slots, window, channels, heads: 1, key_size, value_size: channels }
    }

    /// # Errors
    /// `Error::Internal` if a size is zero or too large.
    pub fn validate(self) -> Result<()> {
        let Self { channels, state_size, taps } = self;
        match [channels, state_size, taps].contains(&0) || state_size > Self::MAX_STATE_SIZE {
            true => Err(Error::internal(format!("{self:?} is no Mamba mixer"))),
            false => Ok(()),
        }
    }
}

/// The shape of a gated short convolution. A row of its projections is `[B | C | x]`, each with `channels` columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvolutionShape {
    pub channels: usize,
    pub taps: usize,
}

impl ShortConvolutionShape {
    /// Returns the columns of a row of projections.
    pub fn cols(self) -> usize {
        3 * self.channels
    }

    /// Returns the spec of such a layer in a pool of `num_slots`. Its state holds the products of B and x of the last
    /// tokens.
    pub fn state_layer(self, num_slots: usize) -> StateLayerSpec {
        let Self { channels, taps } = self;
        let window = taps.saturating_sub(1);
        StateLayerSpec { num_slots, window, channels, heads: 0, key_size: 0, value_size: 0 }
    }

    /// # Errors
    /// `Error::Internal` if a size is zero.
    pub fn validate(self) -> Result<()> {
        match self.channels == 0 || self.taps == 0 {
            true => Err(Error::internal(format!("{self:?} is no short convolution"))),
            false => Ok(()),
        }
    }
}
