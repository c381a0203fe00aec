//! Models: a list of layers, read from a file's metadata, and the one forward pass that runs any of them.
//!
//! `arch` makes a `ModelSpec` of a file's keys (one file per architecture); `keys`, `common`, `encoder`, `experts` and
//! `rope` read the keys for it. `layers` defines the tensors of a `ModelSpec` once; `find` checks them in the file,
//! `upload` brings them to a device; `rank` reads the head of a model that ranks. `buffers` are the activations of a
//! step, `decoder` is the forward pass over any `Backend`. `draft_model` joins a small model that guesses tokens.

mod arch;
mod buffers;
mod common;
mod decoder;
mod delta_net;
mod draft_model;
mod encoder;
mod experts;
mod find;
mod keys;
mod layers;
mod mamba2;
mod rank;
mod rope;
mod spec;
mod upload;

#[cfg(test)]
pub(crate) mod tests;

pub use buffers::DecoderLimits;
pub use decoder::Decoder;
pub use find::ModelTensors;
pub use rank::RankHead;
pub use spec::{KvGroupSpec, ModelSpec};
