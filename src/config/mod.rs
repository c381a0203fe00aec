//! Settings of the user (`EngineArgs`, `SamplingParams`) and the configuration that they resolve to (`EngineConfig`).
//! This is the only module that reads environment variables (prefix `ROCMFORGE_`).

pub mod defaults;
mod device;
mod engine;
mod env;
mod gpu;
mod log;
mod names;
mod pooling;
mod sampling;
mod settings;
mod speculation;
mod structured;
#[cfg(test)]
mod tests;
mod tuning;

pub use engine::{DeviceKind, EngineArgs, EngineConfig, GroupConfig, KvCacheDtype, StateConfig};
pub use env::log_level;
pub use gpu::{ComputeDtype, GpuOptions, HIDES_GPUS, INSIDE_HELPER, Platform, RENAMES_GPUS};
pub use log::LogLevel;
pub use pooling::{Pooling, PoolingParams, RequestParams};
pub use sampling::{MAX_LOGPROBS, MAX_TOKEN_LIST, OutputKind, SamplingDefaults, SamplingParams};
pub use settings::{SETTINGS, Setting};
pub use speculation::{SpeculativeConfig, SpeculativeMethod};
pub use structured::{BeginToken, Form, StructuredFields, StructuredOutputs};
pub use tuning::{Tuned, TunedNumber};
