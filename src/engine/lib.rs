//! The engine: one thread that owns scheduler, KV cache and executor, and handles that talk to it.
//!
//! ```text
//! handle (any thread) --commands--> engine thread: core::step --outputs--> output thread --> sinks
//! ```
//!
//! - `start` starts its threads.
//! - `handle` checks requests and sends commands; `shared` is the state that all threads see.
//! - `thread` is the engine's loop, `core` its step, and `lifecycle` the admission and end of requests.
//! - `request`, `sequence` and `pooling` live as long as a request; `records` keeps the records of finished ones.
//! - `speculation` proposes draft tokens.
//! - `images` computes the rows of images before their requests are scheduled.
//! - `offload` keeps evicted blocks in host memory and in files; `tiers` is its use by the engine thread.
//! - `launch` hands steps to the device, some before their tokens are known.
//! - `watch` decides when to interrupt a running step.
//! - `delivery` is the output thread.
//! - `ids`, `output`, `progress` and `panics` are used by all of them.
//!
//! Start with `core`, then `lifecycle` and `handle`. Of the workspace, this crate knows model, scheduler, KV cache,
//! sampler, tokenizer and grammar, and devices by the traits of `rocmforge_backend` alone. `rocmforge_devices` opens
//! one.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod core;
mod delivery;
pub mod executor;
mod guidance;
pub mod handle;
mod ids;
mod images;
mod load;
mod offload;
pub mod output;
mod progress;
mod request;
mod shared;
mod speculation;
mod start;
pub mod stats;
#[cfg(test)]
mod tests;
mod threads;

// The crates below, by the names that the files of this one use.
use rocmforge_backend as backend;
use rocmforge_config as config;
use rocmforge_core::{Error, Result, batch, error, interrupt, selection};
use rocmforge_devices as devices;
use rocmforge_gguf as gguf;
#[cfg(test)]
use rocmforge_gguf::quant;
#[cfg(test)]
use rocmforge_gpu as gpu;
use rocmforge_grammar as grammar;
use rocmforge_kv_cache as kv_cache;
use rocmforge_model as model;
use rocmforge_pixels as pixels;
use rocmforge_sampler as sampler;
use rocmforge_scheduler as scheduler;
#[cfg(test)]
use rocmforge_testdata as testdata;
#[cfg(test)]
use rocmforge_testmodels as testmodels;
use rocmforge_tokenizer as tokenizer;

pub use executor::Executor;
pub use handle::{AcceptedRequest, Engine, NewRequest, PendingLogits, Prompt};
pub use ids::RequestId;
pub use images::{ImageReader, LoadedImages};
pub use load::LoadedModel;
pub use load::load_tokenizer;
pub use load::runner;
pub use load::sampling_defaults::sampling_defaults;
pub use output::records::RequestRecord;
pub use output::sink::ChannelSink;
pub use output::{FinishReason, OutputSink, RequestMetrics, SequenceOutput, StopReason, TokenLogprob, TokenLogprobs};
pub use progress::LoadProgress;
pub use stats::{ImageStats, OffloadStats, SpeculationStats, Stats};
