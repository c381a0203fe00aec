//! Operations on each row alone: gates, rotations, and the rows of latent attention and of hidden streams.

pub(crate) mod gate_heads;
pub(crate) mod gate_rows;
pub(crate) mod latent;
pub(crate) mod rope;
pub(crate) mod streams;
