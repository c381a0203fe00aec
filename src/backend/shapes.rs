//! The shapes of a device's own types, which the ops' arguments are checked against before they are used.

use super::experts::ExpertSpec;
use super::specs::KvLayerSpec;
use super::states::StateLayerSpec;

/// A buffer of activations.
pub trait BufferShape {
    /// Whether the buffer has room for `rows` rows of `cols`, in whatever form the device keeps them.
    fn holds(&self, rows: usize, cols: usize) -> bool;

    /// The buffer's size, for a message.
    fn room(&self) -> String;
}

/// A stack of matrices.
pub trait MatrixShape {
    /// Outputs of all parts.
    fn rows(&self) -> usize;
    /// Inputs, which all parts share.
    fn cols(&self) -> usize;
}

pub trait VectorShape {
    fn elements(&self) -> usize;
}

/// Matrices of several heads, each of the same shape.
pub trait HeadsShape {
    fn heads(&self) -> usize;
    /// Outputs of a head.
    fn rows(&self) -> usize;
    /// Inputs of a head.
    fn cols(&self) -> usize;
}

pub trait RopeShape {
    /// Rotated pairs of a head.
    fn num_pairs(&self) -> usize;

    /// Whether a pair's elements are neighbours.
    fn pairs_neighbours(&self) -> bool;
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
    /// Experts that the buffers were made for, and the most rows.
    fn room(&self) -> (&ExpertSpec, usize);
}
