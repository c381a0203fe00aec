//! The engine: one thread that owns scheduler, KV cache and executor; handles that talk to it.
//!
//! ```text
//! handle (any thread) --commands--> engine thread: core::step --outputs--> output thread --> sinks
//! ```
//!
//! `handle` checks requests and sends commands; `thread` is the loop, `core` its step, `lifecycle` how requests come
//! and end; `request`, `sequence` and `pooling` are what lives as long as a request; `speculation` guesses tokens;
//! `launch` hands steps to the device, some before their tokens are known; `delivery` is the output thread; `shared`
//! what all threads see, `watch` for whom a step is stopped half-way, and `records` what is remembered of finished
//! requests. `ids`, `output`, `progress` and `panics` are below all of them.

mod core;
mod delivery;
pub mod executor;
mod guidance;
pub mod handle;
mod ids;
mod kv_events;
mod kv_pool;
mod launch;
mod lifecycle;
mod load;
mod maps;
pub mod output;
mod panics;
mod pooling;
mod progress;
mod publish;
mod records;
mod request;
pub mod runner;
mod sampling_defaults;
mod sequence;
mod shared;
mod sink;
mod speculation;
pub mod stats;
mod stop;
#[cfg(test)]
mod tests;
mod thread;
mod validate;
mod watch;

pub use executor::Executor;
pub use handle::{AcceptedRequest, Engine, NewRequest, PendingLogits, Prompt};
pub use ids::RequestId;
pub use load::LoadedModel;
pub(crate) use load::load_tokenizer;
pub use output::{FinishReason, OutputSink, RequestMetrics, SequenceOutput, StopReason, TokenLogprob, TokenLogprobs};
pub use progress::LoadProgress;
pub use records::RequestRecord;
pub(crate) use sampling_defaults::sampling_defaults;
pub use sink::ChannelSink;
pub use stats::{SpeculationStats, Stats};
