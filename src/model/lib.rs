//! Models: a list of layers that is read from a file's metadata, and the one forward pass that runs every model.
//!
//! - `arch` turns a file's keys into a `ModelSpec`, with one file per architecture. `keys`, `common`, `encoder`,
//!   `experts` and `rope` read the keys for it. `key_names` lists alternative names of keys, and `unread_keys` rejects
//!   keys that nothing has read.
//! - `layers` defines the tensors of a `ModelSpec` once. `find` checks them in the file, `roles` tells what a step does
//!   with each, and `upload` copies them to a device.
//! - `head` and `rank` read the matrices that are applied to a pooled hidden state.
//! - `buffers` holds the activations of a step, and `decoder` is the forward pass over any `Backend`.
//! - `draft_model` adds a small model that proposes draft tokens.
//! - `vision` computes rows of a prompt from images.
//!
//! Start with `spec` and `arch/dense/llama.rs`, then `layers` and `decoder`. Of the workspace, this crate knows the
//! model file, pictures, settings and the traits of `rocmforge_backend`: no device, no scheduler and no tokenizer.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod arch;
mod buffers;
mod decoder;
mod draft_model;
mod find;
mod head;
mod keys;
mod layers;
mod rank;
mod roles;
mod spec;
mod tensor_names;
mod upload;
pub mod vision;

#[cfg(test)]
mod tests;

// The crates below, by the names that the files of this one use.
use rocmforge_backend as backend;
use rocmforge_config as config;
#[cfg(test)]
use rocmforge_conformance as conformance;
use rocmforge_core::{Error, Result, batch, images, selection};
#[cfg(test)]
use rocmforge_cpu as cpu;
use rocmforge_gguf::{self as gguf, quant, tensor};
#[cfg(test)]
use rocmforge_gpu as gpu;
use rocmforge_pixels as pixels;
#[cfg(test)]
use rocmforge_testdata as testdata;
#[cfg(test)]
use rocmforge_testmodels as testmodels;

pub use buffers::DecoderLimits;
pub use decoder::Decoder;
pub use find::ModelTensors;
pub use head::Head;
pub use spec::{KvGroupSpec, ModelSpec};
