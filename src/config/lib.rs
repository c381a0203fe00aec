//! Settings of the user (`EngineArgs`) and the configuration that they resolve to (`EngineConfig`).
//!
//! This is the only crate that reads environment variables (prefix `ROCMFORGE_`). Settings of a request, and of the
//! crates that know no device, are in `rocmforge_core::config`; they have their names here, too.
//!
//! - `engine` has the settings of the engine, and `gpu` those of the GPU backend.
//! - `defaults` has their default values.
//! - `env` reads the environment, and `settings` lists the names of all settings.
//! - `speculation` and `tuning` parse the settings of draft tokens and of kernels.
//!
//! Start with `engine`. Of the workspace, this crate knows only `rocmforge_core`: no device, no model and no file. The
//! feature `testing` adds the settings that tests of the GPU backend have.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

pub mod defaults;
mod device;
mod engine;
mod env;
mod gpu;
mod log;
mod settings;
mod speculation;
#[cfg(test)]
mod tests;
mod tuning;

// The crates below, by the names that the files of this one use.
use rocmforge_core::config::names;
use rocmforge_core::{Error, Result};
#[cfg(test)]
use rocmforge_testdata as testdata;

pub use engine::{DeviceKind, EngineArgs, EngineConfig, KvCacheDtype, KvFilesConfig, KvOffloadConfig};
pub use env::log_level;
pub use gpu::{ComputeDtype, GpuOptions, HIDES_GPUS, INSIDE_HELPER, Platform, RENAMES_GPUS};
pub use log::LogLevel;
pub use settings::{SETTINGS, Setting};
pub use speculation::{SpeculativeConfig, SpeculativeMethod};
pub use tuning::{Tuned, TunedNumber};

pub use rocmforge_core::config::{
    BeginToken, Constraint, GroupConfig, MAX_LOGPROBS, MAX_TOKEN_LIST, OutputKind, Pooling, PoolingParams,
    RequestParams, SamplingDefaults, SamplingParams, StateConfig, StructuredFields, StructuredOutputs,
};
