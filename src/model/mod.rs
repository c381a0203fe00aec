//! Models: ONE decoder, parameterised by a `DecoderSpec` that is read from the file's metadata and tensors.
//!
//! `arch` says what is particular to an architecture (one small file each), `keys` reads its metadata, `spec` makes the
//! hyper-parameters of it, `experts` those of the feed-forward, `rope` folds every RoPE scaling into frequencies,
//! `weights` checks each tensor against the spec and uploads it, `decoder` is the forward pass over any `Backend`.

mod arch;
mod decoder;
mod experts;
mod keys;
mod rope;
mod spec;
mod weights;

#[cfg(test)]
mod tests;

pub use decoder::{Decoder, DecoderLimits};
pub use spec::DecoderSpec;
pub use weights::{ModelTensors, Weights};
