//! Defaults that the engine takes where the user gives no number and the model or the machine decides. The defaults
//! that depend on neither are in `EngineArgs::new` and `GpuOptions::default`.

/// Tokens of a step: enough to keep the device busy in a prefill, few enough that running requests do not wait long for
/// their next token.
pub const CPU_BATCHED_TOKENS: usize = 512;
pub const GPU_BATCHED_TOKENS: usize = 2048;

/// Sequences of a step: a CPU is busy with few, and a GPU reads its weights once for all of them.
pub const CPU_SEQS: usize = 64;
pub const GPU_SEQS: usize = 256;

/// Tokens of a step of a model that attends in both directions: as many as its longest prompt has, up to this number.
pub const WHOLE_PROMPT_TOKENS: usize = 8192;

/// Rows of logits of a step beyond one per sequence: prompt log-probabilities come in pieces of this size.
pub const MAX_PROMPT_LOGITS: usize = 64;

/// The KV pool takes no more bytes than this of the host's memory.
pub const CPU_KV_CACHE_BYTES: u64 = 4 << 30;
/// The KV pool takes no more than these shares of the memory that is available, in percent.
pub const CPU_KV_CACHE_PERCENT: u64 = 50;
pub const GPU_KV_CACHE_PERCENT: u64 = 90;
/// A GPU that is part of the processor takes its memory from the rest of the machine.
pub const INTEGRATED_GPU_KV_CACHE_PERCENT: u64 = 75;

/// A prompt is long from this share of `max_model_len` on, in percent.
pub const LONG_PREFILL_PERCENT: usize = 4;
