//! rocmforge: an engine for GGUF language models, driven from Python.
//!
//! One step of the engine reads like this (see `rocmforge_engine`):
//!
//! ```text
//! commands -> Scheduler::schedule() -> Batch -> Executor::launch(batch) -> Executor::collect() -> Selection
//!          -> Sampler -> Scheduler::commit(tokens) -> outputs
//! ```
//!
//! The parts are crates, each in its folder of `src/`, from the bottom up:
//!
//! - `core` (values that all exchange), `config` (settings) and `gguf` (the file);
//! - `tokenizer`, `grammar` (structured output) and `sampler`;
//! - `kv_cache` and `scheduler`, which see integers only;
//! - `backend` (operations on a device), `conformance` (their cases), `cpu` and `gpu`;
//! - `pixels` (pictures in prompts), `model` (a list of layers; many architectures), `devices` (opens one), `engine`.
//!
//! This crate is what maturin builds, and the only one that knows Python. Modules here: `isolation` (outputs of a child
//! process), `json` (bodies of requests), `diagnose` (reports for users), `python` (the bindings, behind the feature
//! `python`). Start with `python/mod.rs`. The manifests say which crate may use which.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

pub mod diagnose;
#[cfg(test)]
mod fuzz_tests;
pub mod isolation;
pub mod json;

#[cfg(feature = "python")]
mod python;

// The checks of `fuzz_tests` name the crate as its users do.
#[cfg(test)]
extern crate self as rocmforge;

// The crates below, by the names that all files here use.
pub use rocmforge_backend as backend;
pub use rocmforge_config as config;
pub use rocmforge_conformance as conformance;
pub use rocmforge_core::{Error, Result, batch, error, images, interrupt, selection, sync};
pub use rocmforge_cpu as cpu;
pub use rocmforge_devices as devices;
pub use rocmforge_engine as engine;
pub use rocmforge_gguf::{self as gguf, quant, tensor};
pub use rocmforge_gpu as gpu;
pub use rocmforge_grammar as grammar;
pub use rocmforge_kv_cache as kv_cache;
pub use rocmforge_model as model;
pub use rocmforge_pixels as pixels;
pub use rocmforge_sampler as sampler;
pub use rocmforge_scheduler as scheduler;
#[cfg(test)]
use rocmforge_testdata as testdata;
pub use rocmforge_tokenizer as tokenizer;
