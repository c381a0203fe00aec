//! What the user said (`EngineArgs`, `SamplingParams`) and what it resolves to (`EngineConfig`).
//! The only module that reads environment variables (prefix `ROCMFORGE_`).

mod engine;
mod sampling;

pub use engine::{DeviceKind, EngineArgs, EngineConfig, KvCacheDtype};
pub use sampling::{OutputKind, SamplingParams};
