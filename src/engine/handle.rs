//! The engine as its users see it: thread-safe, cheap to share; the engine thread lives behind a channel.

use std::sync::Arc;
use std::time::Duration;

use super::output::SharedSink;
use super::stats::Stats;
use crate::Result;
use crate::backend::MemoryLedger;
use crate::config::{EngineArgs, EngineConfig, SamplingParams};
use crate::kv_cache::BlockInfo;
use crate::tokenizer::{ChatTemplate, Tokenizer};

/// Unique over the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Tokenised with special tokens added and none parsed.
    Text(String),
    TokenIds(Vec<u32>),
}

pub struct NewRequest {
    /// The caller's name for it (`abort` takes it); must not be in use. `None`: the engine makes one up.
    pub name: Option<String>,
    pub prompt: Prompt,
    pub params: SamplingParams,
    /// Lower runs earlier.
    pub priority: i32,
    /// Its deadline, from now.
    pub timeout: Option<Duration>,
    pub sink: SharedSink,
}

/// What an accepted request looks like to the caller.
#[derive(Debug, Clone)]
pub struct Accepted {
    pub id: RequestId,
    pub name: String,
    pub prompt_token_ids: Vec<u32>,
}

/// Progress of a load: bytes of weights done and in all.
#[derive(Debug, Clone, Copy)]
pub struct LoadProgress {
    pub done: u64,
    pub total: u64,
}

/// Dropping the last handle shuts the engine down.
pub struct Engine {}

impl Engine {
    /// Opens, checks and loads a model and starts the engine thread. `progress` may return `false` to stop (Ctrl-C).
    pub fn load(args: EngineArgs, progress: &mut dyn FnMut(LoadProgress) -> bool) -> Result<Self> {
        let _ = (args, progress);
        todo!("engine")
    }
    pub fn config(&self) -> &EngineConfig {
        todo!("engine")
    }
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        todo!("engine")
    }
    /// `Error::ChatTemplate` where the file has none: it says how to give one.
    pub fn chat_template(&self) -> Result<&Arc<ChatTemplate>> {
        todo!("engine")
    }
    /// Checks and queues a request; never blocks on the device.
    pub fn add_request(&self, request: NewRequest) -> Result<Accepted> {
        let _ = request;
        todo!("engine")
    }
    /// `false` when no such request is active. Its blocks are free within one step.
    pub fn abort(&self, name: &str) -> Result<bool> {
        let _ = name;
        todo!("engine")
    }
    pub fn abort_id(&self, id: RequestId) -> Result<()> {
        let _ = id;
        todo!("engine")
    }
    pub fn stats(&self) -> Stats {
        todo!("engine")
    }
    pub fn memory(&self) -> MemoryLedger {
        todo!("engine")
    }
    pub fn block_map(&self) -> Vec<BlockInfo> {
        todo!("engine")
    }
    /// `false` when refused because blocks are in use.
    pub fn reset_prefix_cache(&self) -> Result<bool> {
        todo!("engine")
    }
    /// Logits of every position of `token_ids`, `[n * vocab_size]`; runs alone, without the prefix cache.
    pub fn prompt_logits(&self, token_ids: Vec<u32>) -> Result<Vec<f32>> {
        let _ = token_ids;
        todo!("engine")
    }
    /// Checks the invariants of KV cache and scheduler.
    pub fn check_integrity(&self) -> Result<()> {
        todo!("engine")
    }
    /// Which device and which kernel serves what.
    pub fn describe(&self) -> &str {
        todo!("engine")
    }
    /// Ends every request (as aborted), joins the threads and frees everything. A second call does nothing.
    pub fn close(&self) {
        todo!("engine")
    }
    pub fn is_closed(&self) -> bool {
        todo!("engine")
    }
}
