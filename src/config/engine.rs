//! Engine arguments and the immutable configuration that they resolve to.

use std::path::PathBuf;
use std::time::Duration;

use super::names::{by_name, within};
use super::{GpuOptions, GroupConfig, Pooling, SamplingDefaults, SpeculativeConfig, StateConfig, defaults};
use crate::{Error, Result};

/// A limit on threads that no machine reaches.
const MAX_THREADS: usize = 4096;
/// The most sequences of a batch.
const MAX_SEQS: usize = 1 << 16;
/// Maximum tokens of a block.
const MAX_BLOCK_SIZE: usize = 1024;

/// The device that the model runs on. `Auto` picks a GPU if one works, else the CPU, and reports its choice.
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
    /// Twice the memory; keys and values are stored as computed.
    F32,
    /// About half the memory. The key and the value of each head and token are each stored as integers up to 127 with
    /// their own f32 scale. The scale is set when the token is stored, so stored values never change.
    Int8,
    /// About 31 % of the memory. Each 32 elements of a head are stored as integers up to 15 with a scale and a minimum
    /// in f16. Queries and keys are rotated by Hadamard matrices first, so that outliers of K are spread.
    Int4,
}

impl KvCacheDtype {
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// # Errors
    /// `InvalidRequest` naming the argument `what`, for an unknown type name.
    pub fn named(what: &'static str, name: &str) -> Result<Self> {
        by_name(what, name, &[Self::F16, Self::F32, Self::Int8, Self::Int4], Self::name)
    }
}

/// The user's settings; `None` means "decide from the model and the machine".
#[derive(Debug, Clone)]
pub struct EngineArgs {
    pub model: PathBuf,
    pub device: DeviceKind,
    pub num_threads: Option<usize>,
    /// The instruction set of the CPU kernels, by `Isa`'s name; `None` takes the machine's best. It helps to find out
    /// whether a kernel is at fault. Environment variable: `ROCMFORGE_CPU_ISA`.
    pub cpu_isa: Option<String>,
    /// Overrides `gpu.batch_invariant`. If `None`, `ROCMFORGE_BATCH_INVARIANT` overrides it if set.
    pub batch_invariant: Option<bool>,
    /// Overrides `gpu.self_test`. If `None`, `ROCMFORGE_SELF_TEST` overrides it if set.
    pub self_test: Option<bool>,
    pub gpu: GpuOptions,
    pub max_model_len: Option<usize>,
    pub max_num_seqs: Option<usize>,
    pub max_num_batched_tokens: Option<usize>,
    pub block_size: usize,
    /// The bytes of the KV pool.
    pub kv_cache_memory: Option<u64>,
    pub kv_cache_dtype: KvCacheDtype,
    pub enable_prefix_caching: bool,
    /// The bytes of host memory for blocks and snapshots that are evicted from the device. `None` is 0, or
    /// `defaults::KV_OFFLOAD_MEMORY` with a `kv_offload_dir`.
    pub kv_offload_memory: Option<u64>,
    /// The folder for blocks and snapshots that leave host memory, and at shutdown. `None` writes no files.
    pub kv_offload_dir: Option<PathBuf>,
    /// The bytes of that folder. `None` is `defaults::KV_OFFLOAD_DISK`.
    pub kv_offload_disk: Option<u64>,
    pub max_queue_size: usize,
    /// The most prompts that a step may leave partially computed.
    pub max_num_partial_prefills: usize,
    /// The most long prompts among the `max_num_partial_prefills`.
    pub max_long_partial_prefills: usize,
    /// A prompt is long while it has more than this number of tokens to compute. `None`: 4 % of the longest sequence,
    /// and at most the tokens of a step.
    pub long_prefill_token_threshold: Option<usize>,
    /// Tokens of a long prompt between two snapshots of recurrent states, rounded up to whole blocks. `None`: as many
    /// as have keys and values of a snapshot's size, from 256 to 4096.
    pub state_snapshot_interval: Option<usize>,
    /// The file of the image encoder. `None` takes the file beside the model that fits it, if there is one; `"none"`
    /// takes none.
    pub mmproj: Option<PathBuf>,
    /// Settings of speculative decoding, which is off by default. If `None`, `ROCMFORGE_SPECULATIVE_CONFIG` is used if
    /// set.
    pub speculative_config: Option<SpeculativeConfig>,
    /// How long the record of a finished request is kept.
    pub retention: Duration,
    /// The seed from which requests without one derive theirs; `None` draws it from the system.
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
            kv_offload_memory: None,
            kv_offload_dir: None,
            kv_offload_disk: None,
            max_queue_size: 1024,
            max_num_partial_prefills: 4,
            max_long_partial_prefills: 1,
            long_prefill_token_threshold: None,
            state_snapshot_interval: None,
            mmproj: None,
            speculative_config: None,
            retention: Duration::from_secs(300),
            seed: None,
        }
    }
}

/// The tiers of the KV cache below the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvOffloadConfig {
    /// The bytes of host memory.
    pub memory: u64,
    /// `None` if nothing is kept in files.
    pub files: Option<KvFilesConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvFilesConfig {
    pub folder: PathBuf,
    /// Maximum bytes of all files in the folder.
    pub capacity: u64,
    /// A hash of all that contents depend on besides their tokens.
    pub namespace: [u8; 32],
}

/// The resolved configuration: every number is final and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    pub num_threads: usize,
    /// The length that the model was made for, which limits `max_model_len`.
    pub context_length: usize,
    pub max_model_len: usize,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    /// The most drafts of a step.
    pub max_drafts: usize,
    pub block_size: usize,
    /// The model's KV groups, in the order of `Batch::groups`.
    pub kv_groups: Vec<GroupConfig>,
    /// `None` for a model without recurrent states.
    pub states: Option<StateConfig>,
    pub kv_cache_dtype: KvCacheDtype,
    pub enable_prefix_caching: bool,
    /// `None` if evicted blocks are forgotten.
    pub kv_offload: Option<KvOffloadConfig>,
    pub max_queue_size: usize,
    pub max_num_partial_prefills: usize,
    pub max_long_partial_prefills: usize,
    pub long_prefill_token_threshold: usize,
    pub speculative_config: Option<SpeculativeConfig>,
    pub retention: Duration,
    pub seed: Option<u64>,
    /// The size of an embedding, and the pooling for requests that do not set it.
    pub embedding_size: usize,
    pub pooling: Pooling,
    /// Sampling settings that the model's file recommends.
    pub sampling_defaults: SamplingDefaults,
}

impl EngineConfig {
    /// True if the model is bidirectional: it produces embeddings and no text.
    pub fn is_bidirectional(&self) -> bool {
        self.kv_groups.iter().any(|group| group.kind.is_bidirectional())
    }

    /// Returns the most drafts of one sequence in a step. With recurrent states, each draft saves a state. The limit is
    /// then the number of draft tokens, so that long forced texts do not evict snapshots.
    pub fn most_drafts(&self) -> usize {
        let drafted = self.speculative_config.as_ref().map(|config| config.num_speculative_tokens);
        let most = drafted.unwrap_or_else(|| SpeculativeConfig::default().num_speculative_tokens);
        if self.states.is_some() { most } else { usize::MAX }
    }
}

impl EngineArgs {
    /// Returns the bytes of host memory for offloaded contents; `None` if there are none.
    pub fn offload_memory(&self) -> Option<u64> {
        let default = self.kv_offload_dir.as_ref().map(|_| defaults::KV_OFFLOAD_MEMORY);
        self.kv_offload_memory.or(default).filter(|bytes| *bytes > 0)
    }

    fn validate_offload(&self) -> Result<()> {
        let Some(folder) = &self.kv_offload_dir else {
            return match self.kv_offload_disk {
                Some(bytes) => {
                    let expected = "a kv_offload_dir as well, the folder that these bytes are for";
                    Err(Error::invalid("kv_offload_disk", format!("{bytes} bytes"), expected))
                }
                None => Ok(()),
            };
        };
        if folder.as_os_str().is_empty() {
            return Err(Error::invalid("kv_offload_dir", "an empty path", "the path of a folder"));
        }
        if self.kv_offload_memory == Some(0) {
            let expected = "some bytes: contents of kv_offload_dir pass through host memory";
            return Err(Error::invalid("kv_offload_memory", "0 bytes", expected));
        }
        if self.kv_offload_disk == Some(0) {
            return Err(Error::invalid("kv_offload_disk", "0 bytes", "some bytes, or no kv_offload_dir"));
        }
        if !self.enable_prefix_caching {
            let expected = "enable_prefix_caching=True, or no kv_offload_dir";
            return Err(Error::invalid("kv_offload_dir", "an engine without prefix cache", expected));
        }
        Ok(())
    }

    /// Checks everything that does not depend on the model or the machine.
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
                // Every running sequence advances in every step.
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
        if self.gpu.memory_limit == Some(0) {
            return Err(Error::invalid("gpu_memory_limit", "0 bytes", "room for the activations and the KV cache"));
        }
        self.validate_offload()?;
        if self.kv_cache_memory == Some(0) {
            return Err(Error::invalid("kv_cache_memory", "0 bytes", "room for at least one block"));
        }
        Ok(())
    }
}
