//! Settings that several crates read: those of a request, and the pools of the KV cache. The engine's own settings are
//! in the crate above, whose `config` re-exports these.

pub mod names;
mod pooling;
mod pools;
mod sampling;
mod structured;
#[cfg(test)]
mod tests;

pub use pooling::{Pooling, PoolingParams, RequestParams};
pub use pools::{GroupConfig, StateConfig};
pub use sampling::{MAX_LOGPROBS, MAX_TOKEN_LIST, OutputKind, SamplingDefaults, SamplingParams};
pub use structured::{BeginToken, Constraint, StructuredFields, StructuredOutputs};
