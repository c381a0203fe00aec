//! Defaults of the engine for numbers that the user does not set and that depend on the model or the machine. Defaults
//! that depend on neither are in `EngineArgs::new` and `GpuOptions::default`.

/// Tokens of a step: enough to keep the device busy in a prefill, and few enough that running requests do not wait long
/// for their next token.
pub const CPU_BATCHED_TOKENS: usize = 512;
pub const GPU_BATCHED_TOKENS: usize = 2048;

/// Sequences of a step. A few keep a CPU busy, while a GPU reads its weights once for all of them.
pub const CPU_SEQS: usize = 64;
pub const GPU_SEQS: usize = 256;

/// The largest default number of tokens of a step of a bidirectional model, which must hold its longest prompt.
pub const WHOLE_PROMPT_TOKENS: usize = 8192;

/// Drafts of a step: rows of logits besides one per sequence. The logits of a prompt come in pieces of that many rows
/// in all.
pub const MAX_DRAFTS: usize = 64;

/// Maximum bytes of the host's memory that the KV pool takes by default.
pub const CPU_KV_CACHE_BYTES: u64 = 4 << 30;
/// The largest shares of the available memory that the KV pool takes by default, in percent.
pub const CPU_KV_CACHE_PERCENT: u64 = 50;
pub const GPU_KV_CACHE_PERCENT: u64 = 90;
/// A GPU that is part of the processor shares its memory with the rest of the machine.
pub const INTEGRATED_GPU_KV_CACHE_PERCENT: u64 = 75;

/// Tokens and running sequences for which the KV pool has room at least, if weights lie in the host's memory to make
/// that room.
pub const ROOM_MADE_TOKENS: u64 = 8192;
pub const ROOM_MADE_SEQS: u64 = 8;

/// A prompt is long above this share of `max_model_len`, in percent.
pub const LONG_PREFILL_PERCENT: usize = 4;

/// Bytes of host memory for offloaded blocks, if only a folder is set.
pub const KV_OFFLOAD_MEMORY: u64 = 1 << 30;

/// Bytes of the folder for offloaded blocks.
pub const KV_OFFLOAD_DISK: u64 = 16 << 30;
