//! What the ops' arguments ask of a device's own types before they are used.

use super::experts::ExpertSpec;
use super::specs::KvLayerSpec;

/// Activations.
pub trait BufferShape {
    /// Whether it has room for `rows` rows of `cols`, in whatever form the device keeps them.
    fn holds(&self, rows: usize, cols: usize) -> bool;

    /// Its size, for a message.
    fn room(&self) -> String;
}

/// A stack of matrices.
pub trait MatrixShape {
    /// Outputs of all parts.
    fn rows(&self) -> usize;
    /// Inputs.
    fn cols(&self) -> usize;
}

pub trait VectorShape {
    fn elements(&self) -> usize;
}

pub trait RopeShape {
    /// Rotated pairs of a head.
    fn num_pairs(&self) -> usize;
}

pub trait KvShape {
    fn spec(&self) -> &KvLayerSpec;
}

pub trait ExpertShape {
    fn spec(&self) -> &ExpertSpec;
}

pub trait WorkShape {
    /// For which experts it is, and for how many rows at most.
    fn room(&self) -> (&ExpertSpec, usize);
}
