//! The shapes of a device's own types. The arguments of ops are checked against them.

use super::experts::ExpertSpec;
use super::specs::{KvLayerSpec, RopeSpec};
use super::states::StateLayerSpec;

/// A buffer of activations.
pub trait BufferShape {
    /// True if the buffer has room for `rows` rows of `cols`, in the form in which the device keeps them.
    fn holds(&self, rows: usize, cols: usize) -> bool;

    /// Returns the buffer's size for a message.
    fn room(&self) -> String;
}

/// A stack of matrices.
pub trait MatrixShape {
    /// Returns the outputs of all parts.
    fn rows(&self) -> usize;
    /// Returns the inputs, which all parts share.
    fn cols(&self) -> usize;
}

pub trait VectorShape {
    fn elements(&self) -> usize;
}

/// Matrices of several heads, all of the same shape.
pub trait HeadsShape {
    fn heads(&self) -> usize;
    /// Returns the outputs of a head.
    fn rows(&self) -> usize;
    /// Returns the inputs of a head.
    fn cols(&self) -> usize;
}

pub trait RopeShape {
    /// Returns the rotated pairs of a head.
    fn num_pairs(&self) -> usize;
}

/// A device may keep the frequencies as they are.
impl RopeShape for RopeSpec {
    fn num_pairs(&self) -> usize {
        self.inv_freq.len()
    }
}

pub trait KvShape {
    fn spec(&self) -> &KvLayerSpec;
}

pub trait StateShape {
    fn spec(&self) -> &StateLayerSpec;
}

pub trait ExpertShape {
    fn spec(&self) -> &ExpertSpec;
}

pub trait WorkShape {
    /// Returns the experts and the largest number of rows that the buffers were allocated for.
    fn room(&self) -> (&ExpertSpec, usize);
}
