//! rocmforge: an engine for GGUF language models, driven from Python.
//!
//! One step of the engine reads like this (see `engine::core`):
//!
//! ```text
//! commands -> Scheduler::schedule() -> Batch -> Executor::launch(batch) -> Executor::collect() -> Selection
//!          -> Sampler -> Scheduler::commit(tokens) -> outputs
//! ```
//!
//! Crates below this one, from the bottom up: `core` (values that all exchange), `gguf` (the file, with `tensor` and
//! `quant`), `tokenizer`, `grammar` (structured output), `sampler`, `kv_cache` and `scheduler` (integers only). Modules
//! here: `backend` (ops on a device), `pixels` (pictures in prompts), `model` (a list of layers; many architectures),
//! `engine`, `isolation` (outputs of a child process), `json` (bodies of requests), `diagnose` (reports for users),
//! `python`.
//! `tests/structure/test_architecture.py` enforces which modules may import which.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

pub mod backend;
pub mod config;
pub mod diagnose;
pub mod engine;
#[cfg(test)]
mod fuzz_tests;
pub mod isolation;
pub mod json;
pub mod model;
pub mod pixels;

#[cfg(feature = "python")]
mod python;

// The checks of `fuzz_tests` name the crate as its users do.
#[cfg(test)]
extern crate self as rocmforge;

// The crates below, by the names that all files here use.
pub use rocmforge_core::{Error, Result, batch, error, images, interrupt, selection, sync};
pub use rocmforge_gguf::{self as gguf, quant, tensor};
pub use rocmforge_grammar as grammar;
pub use rocmforge_kv_cache as kv_cache;
pub use rocmforge_sampler as sampler;
pub use rocmforge_scheduler as scheduler;
#[cfg(test)]
use rocmforge_testdata as testdata;
pub use rocmforge_tokenizer as tokenizer;
