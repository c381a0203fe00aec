//! Models: ONE decoder, parameterised by a `DecoderSpec` that is read from the file's metadata and tensors.
//!
//! `arch` says what is particular to an architecture (one small file each), `spec` reads the hyper-parameters,
//! `experts` those of the feed-forward, `rope` folds every RoPE scaling into frequencies, `weights` checks each tensor
//! against the spec and uploads it, `decoder` is the forward pass over any `Backend`.

mod arch;
mod decoder;
mod experts;
mod rope;
mod spec;
mod weights;

#[cfg(test)]
mod tests;

pub use decoder::{Decoder, DecoderLimits};
pub use spec::DecoderSpec;
pub use weights::{ModelTensors, Weights};
