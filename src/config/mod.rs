//! Settings of the user (`EngineArgs`, `SamplingParams`) and the configuration that they resolve to (`EngineConfig`).
//! This is the only module that reads environment variables (prefix `ROCMFORGE_`). Settings that crates below need are
//! in `rocmforge_core::config`.

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

pub use engine::{DeviceKind, EngineArgs, EngineConfig, KvCacheDtype, KvFilesConfig, KvOffloadConfig};
pub use env::log_level;
pub use gpu::{ComputeDtype, GpuOptions, HIDES_GPUS, INSIDE_HELPER, Platform, RENAMES_GPUS};
pub use log::LogLevel;
pub use settings::{SETTINGS, Setting};
pub use speculation::{SpeculativeConfig, SpeculativeMethod};
pub use tuning::{Tuned, TunedNumber};

use rocmforge_core::config::names;
pub use rocmforge_core::config::{
    BeginToken, Form, GroupConfig, MAX_LOGPROBS, MAX_TOKEN_LIST, OutputKind, Pooling, PoolingParams, RequestParams,
    SamplingDefaults, SamplingParams, StateConfig, StructuredFields, StructuredOutputs,
};
