//! rocmforge: an engine for GGUF language models, driven from Python.
//!
//! One step of the engine reads like this (see `engine::core`):
//!
//! ```text
//! commands -> Scheduler::schedule() -> Batch -> Executor::launch(batch) -> Executor::collect() -> Selection
//!          -> Sampler -> Scheduler::commit(tokens) -> outputs
//! ```
//!
//! Modules, from the bottom up: `quant` (block formats), `tensor`, `gguf` (the file), `backend` (ops on a device),
//! `pixels` (pictures in prompts), `model` (a list of layers; many architectures), `kv_cache` and `scheduler` (integers
//! only), `sampler`, `tokenizer`, `grammar` (structured output), `engine`, `isolation` (outputs of a child process),
//! `diagnose` (reports for users), `python`. `tests/test_architecture.py` enforces who may import whom.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

pub mod backend;
pub mod batch;
pub mod config;
pub mod diagnose;
pub mod engine;
pub mod error;
#[cfg(test)]
mod fuzz_tests;
pub mod gguf;
pub mod grammar;
pub mod images;
pub mod interrupt;
pub mod isolation;
pub mod kv_cache;
pub mod model;
pub mod pixels;
pub mod quant;
pub mod sampler;
pub mod scheduler;
pub mod selection;
pub mod sync;
pub mod tensor;
#[cfg(test)]
pub mod testdata;
pub mod tokenizer;

#[cfg(feature = "python")]
mod python;

// The checks of `fuzz_tests` name the crate as its users do.
#[cfg(test)]
extern crate self as rocmforge;

pub use error::{Error, Result};
