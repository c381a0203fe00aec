//! The engine: one thread that owns scheduler, KV cache and executor; handles that talk to it.

pub mod chat;
pub mod check;
pub mod doctor;
pub mod executor;
pub mod handle;
pub mod output;
pub mod runner;
pub mod stats;

pub use executor::{Executor, Logits};
pub use handle::{Accepted, Engine, LoadProgress, NewRequest, Prompt, RequestId};
pub use output::{FinishReason, OutputSink, RequestMetrics, SequenceOutput, StopReason, TokenLogprob, TokenLogprobs};
pub use stats::Stats;
