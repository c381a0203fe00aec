//! Engine arguments and the immutable configuration they resolve to.

use std::path::PathBuf;
use std::time::Duration;

use super::names::by_name;
use super::sampling::within;
use super::{GpuOptions, Pooling, SamplingDefaults, SpeculativeConfig};
use crate::batch::GroupKind;
use crate::{Error, Result};

/// A limit on threads that no machine reaches.
const MAX_THREADS: usize = 4096;
/// The most sequences of a batch.
const MAX_SEQS: usize = 1 << 16;
/// The most tokens of a block.
const MAX_BLOCK_SIZE: usize = 1024;

/// The device that the model runs on. `Auto` takes a GPU when there is one that works, else the CPU, and says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceKind {
    #[default]
    Auto,
    Cpu,
    Gpu,
}

impl DeviceKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
        }
    }
}

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvCacheDtype {
    #[default]
    F16,
    /// Twice the memory; K and V are kept as they were computed.
    F32,
    /// About half the memory. Each head of a token's K, and of its V, is kept as whole numbers up to 127 and a scale
    /// of its own, an f32, which is set when the token is stored: what is stored never changes afterwards.
    Int8,
}

impl KvCacheDtype {
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }

    /// # Errors
    /// `InvalidRequest` that names the argument `what`, for what is no name of a type.
    pub fn named(what: &'static str, name: &str) -> Result<Self> {
        by_name(what, name, &[Self::F16, Self::F32, Self::Int8], Self::name)
    }
}

/// Settings of the user; `None` means "decide from the model and the machine".
#[derive(Debug, Clone)]
pub struct EngineArgs {
    pub model: PathBuf,
    pub device: DeviceKind,
    pub num_threads: Option<usize>,
    /// Instruction set of the CPU kernels, by `Isa`'s name; `None` takes the best that the machine has. It serves to
    /// find out whether a kernel is to blame. `ROCMFORGE_CPU_ISA`.
    pub cpu_isa: Option<String>,
    /// Overrides `gpu.batch_invariant`. If `None`, `ROCMFORGE_BATCH_INVARIANT` does so, if it is set.
    pub batch_invariant: Option<bool>,
    /// Overrides `gpu.self_test`. If `None`, `ROCMFORGE_SELF_TEST` does so, if it is set.
    pub self_test: Option<bool>,
    pub gpu: GpuOptions,
    pub max_model_len: Option<usize>,
    pub max_num_seqs: Option<usize>,
    pub max_num_batched_tokens: Option<usize>,
    pub block_size: usize,
    /// Bytes of the KV pool.
    pub kv_cache_memory: Option<u64>,
    pub kv_cache_dtype: KvCacheDtype,
    pub enable_prefix_caching: bool,
    pub max_queue_size: usize,
    /// Prompts that a step may leave half-way.
    pub max_num_partial_prefills: usize,
    /// Long prompts that a step may leave half-way; they count among `max_num_partial_prefills`.
    pub max_long_partial_prefills: usize,
    /// A prompt is long while more tokens than this are to be computed of it. `None`: 4 % of the longest sequence, and
    /// no more than a step computes.
    pub long_prefill_token_threshold: Option<usize>,
    /// Tokens of a long prompt between two snapshots of the recurrent states of a model that has such, rounded up to
    /// whole blocks. `None`: as many as have keys and values of a snapshot's size, from 256 to 4096.
    pub state_snapshot_interval: Option<usize>,
    /// Whether tokens are guessed, and how; by default none are. If `None`, `ROCMFORGE_SPECULATIVE_CONFIG` says so, if
    /// it is set.
    pub speculative_config: Option<SpeculativeConfig>,
    /// The time for which the record of a finished request is kept.
    pub retention: Duration,
    /// Seed of requests that bring none; `None` draws one from the system.
    pub seed: Option<u64>,
}

impl EngineArgs {
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            device: DeviceKind::Auto,
            num_threads: None,
            cpu_isa: None,
            batch_invariant: None,
            self_test: None,
            gpu: GpuOptions::default(),
            max_model_len: None,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            block_size: 16,
            kv_cache_memory: None,
            kv_cache_dtype: KvCacheDtype::F16,
            enable_prefix_caching: true,
            max_queue_size: 1024,
            max_num_partial_prefills: 4,
            max_long_partial_prefills: 1,
            long_prefill_token_threshold: None,
            state_snapshot_interval: None,
            speculative_config: None,
            retention: Duration::from_secs(300),
            seed: None,
        }
    }
}

/// One KV group of a model: the tokens that its layers attend to, and the number of blocks in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupConfig {
    pub kind: GroupKind,
    pub num_blocks: usize,
}

/// The pool of recurrent states of a model that has layers of such: the running sequences' own, and snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateConfig {
    /// Slots in all, each of one state of all these layers.
    pub num_slots: usize,
    /// Slots of each running sequence. Where a step may be stopped half-way these are two: it reads one and writes the
    /// other, so that what it began with is there when it comes again. Else one does, which each step writes over.
    pub slots_per_seq: usize,
    /// Tokens of a long prompt between two snapshots, a multiple of the block size.
    pub snapshot_interval: usize,
}

/// The resolved configuration: every number is final and was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    pub num_threads: usize,
    /// The length that the model was made for: the most that `max_model_len` can be.
    pub context_length: usize,
    pub max_model_len: usize,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    /// Rows of logits of a step for prompt tokens whose logits are wanted, and for drafts, beyond one per sequence.
    pub max_prompt_logits: usize,
    pub block_size: usize,
    /// The model's KV groups, in the order of `Batch::groups`.
    pub kv_groups: Vec<GroupConfig>,
    /// `None` for a model whose layers all attend.
    pub states: Option<StateConfig>,
    pub kv_cache_dtype: KvCacheDtype,
    pub enable_prefix_caching: bool,
    pub max_queue_size: usize,
    pub max_num_partial_prefills: usize,
    pub max_long_partial_prefills: usize,
    pub long_prefill_token_threshold: usize,
    pub speculative_config: Option<SpeculativeConfig>,
    pub retention: Duration,
    pub seed: Option<u64>,
    /// Values of an embedding, and how one is made where a request does not say.
    pub embedding_size: usize,
    pub pooling: Pooling,
    /// Sampling settings that the model's file recommends.
    pub sampling_defaults: SamplingDefaults,
}

impl EngineConfig {
    /// Whether the model attends in both directions: it makes vectors and no texts.
    pub fn is_bidirectional(&self) -> bool {
        self.kv_groups.iter().any(|group| group.kind.is_bidirectional())
    }

    /// The most drafts of one sequence in a step. Each keeps a recurrent state, where the model has such: as many as
    /// are guessed at most, so that long forced texts push no snapshots out of their slots.
    pub fn most_drafts(&self) -> usize {
        let guessed = self.speculative_config.as_ref().map(|config| config.num_speculative_tokens);
        let most = guessed.unwrap_or_else(|| SpeculativeConfig::default().num_speculative_tokens);
        if self.states.is_some() { most } else { usize::MAX }
    }
}

impl EngineArgs {
    /// Checks what can be checked without model and machine.
    ///
    /// # Errors
    /// `InvalidRequest` naming the first argument out of range.
    pub fn validate(&self) -> Result<()> {
        if self.model.as_os_str().is_empty() {
            return Err(Error::invalid("model", "an empty path", "the path of a GGUF file"));
        }
        within("num_threads", self.num_threads.unwrap_or(1), 1, MAX_THREADS)?;
        within("max_model_len", self.max_model_len.unwrap_or(1), 1, u32::MAX as usize)?;
        within("max_num_seqs", self.max_num_seqs.unwrap_or(1), 1, MAX_SEQS)?;
        if let Some(tokens) = self.max_num_batched_tokens {
            within("max_num_batched_tokens", tokens, 1, u32::MAX as usize)?;
            if let Some(seqs) = self.max_num_seqs.filter(|&seqs| tokens < seqs) {
                // Each running sequence gets on in each step.
                let expected = format!("at least max_num_seqs, which is {seqs}");
                return Err(Error::invalid("max_num_batched_tokens", tokens, expected));
            }
        }
        within("block_size", self.block_size, 1, MAX_BLOCK_SIZE)?;
        within("max_queue_size", self.max_queue_size, 1, usize::MAX)?;
        within("max_num_partial_prefills", self.max_num_partial_prefills, 1, usize::MAX)?;
        within("max_long_partial_prefills", self.max_long_partial_prefills, 1, self.max_num_partial_prefills)?;
        within("long_prefill_token_threshold", self.long_prefill_token_threshold.unwrap_or(1), 1, usize::MAX)?;
        within("state_snapshot_interval", self.state_snapshot_interval.unwrap_or(1), 1, u32::MAX as usize)?;
        self.speculative_config.as_ref().map_or(Ok(()), SpeculativeConfig::validate)?;
        if self.kv_cache_memory == Some(0) {
            return Err(Error::invalid("kv_cache_memory", "0 bytes", "room for at least one block"));
        }
        Ok(())
    }
}
