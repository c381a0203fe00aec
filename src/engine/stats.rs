//! Snapshots of the engine's state for its users.

use super::output::FinishReason;
use crate::backend::ExpertCacheUse;
use crate::kv_cache::{Histogram, KvCacheStats};

/// Counters and gauges; one consistent snapshot per step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    pub num_waiting: usize,
    pub num_running: usize,
    pub num_preemptions: u64,
    pub num_finished_stop: u64,
    pub num_finished_length: u64,
    pub num_finished_abort: u64,
    pub num_finished_timeout: u64,
    pub num_finished_error: u64,
    pub kv_cache: KvCacheStats,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    pub engine_steps: u64,
    /// Rows of logits that had to be read whole because the device's selection was not enough.
    pub logits_rows_fetched: u64,
    pub device_allocations: u64,
    /// Times from the call that aborts a request until its blocks are free.
    pub cancel_to_free: Histogram,
    /// Records of finished requests that are still kept.
    pub finished_records: usize,
    pub speculation: SpeculationStats,
    pub images: ImageStats,
    /// Uses of the device's cache of experts.
    pub expert_cache: ExpertCacheUse,
    pub kv_offload: OffloadStats,
}

/// Gauges and counters of the tiers below the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OffloadStats {
    /// Host memory, and what was found in each tier.
    pub index: crate::kv_cache::OffloadStats,
    /// Bytes that the folder may have, and that it has as far as the engine knows, with files of other models.
    pub disk_capacity: u64,
    pub disk_bytes: u64,
    /// Blocks and snapshots that were written to files and read from files.
    pub disk_written: u64,
    pub disk_read: u64,
    /// Blocks and snapshots that were not written: too many were waiting, or a write failed.
    pub disk_dropped: u64,
    /// Files that had vanished or were damaged when they were to be read.
    pub disk_unreadable: u64,
}

/// Counts of images that were looked up and encoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImageStats {
    /// Images of requests.
    pub num_queries: u64,
    /// Images whose rows were still there from another request.
    pub num_hits: u64,
    /// Rows that the encoder computed.
    pub num_tokens: u64,
    /// The time that the encoder worked, in microseconds.
    pub busy_micros: u64,
}

/// Counts of draft tokens. Tokens that a grammar forces do not count as draft tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Draft tokens that the lookup proposed, whether chosen or not, and those that the model's block computed.
    pub num_proposed_tokens: u64,
    /// The number of times that a step verified drafts of a sequence.
    pub num_drafts: u64,
    /// Drafts that were verified: those that were chosen and had room in the step.
    pub num_draft_tokens: u64,
    pub num_accepted_tokens: u64,
    /// Accepted drafts by position after the last known token.
    pub num_accepted_tokens_per_pos: Vec<u64>,
    /// Tokens that were computed in order to draft: by the model's block, or by the draft model with all that it
    /// lacked.
    pub num_drafter_tokens: u64,
}

impl SpeculationStats {
    /// Counts a step's drafts of one sequence.
    pub(super) fn note_verified(&mut self, num_drafts: usize, num_accepted: usize) {
        self.num_drafts += 1;
        self.num_draft_tokens += num_drafts as u64;
        self.num_accepted_tokens += num_accepted as u64;
        let places = self.num_accepted_tokens_per_pos.len().max(num_drafts);
        self.num_accepted_tokens_per_pos.resize(places, 0);
        self.num_accepted_tokens_per_pos[..num_accepted].iter_mut().for_each(|count| *count += 1);
    }
}

impl Stats {
    pub(super) fn finished_mut(&mut self, reason: FinishReason) -> &mut u64 {
        match reason {
            FinishReason::Stop => &mut self.num_finished_stop,
            FinishReason::Length => &mut self.num_finished_length,
            FinishReason::Abort => &mut self.num_finished_abort,
            FinishReason::Timeout => &mut self.num_finished_timeout,
            FinishReason::Error => &mut self.num_finished_error,
        }
    }
}
