//! Snapshots of the engine for its users.

use super::output::FinishReason;
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
    /// Rows of logits that had to be read whole after their best tokens alone.
    pub logits_rows_fetched: u64,
    pub device_allocations: u64,
    /// Times from the call that aborts a request until its blocks are free.
    pub cancel_to_free: Histogram,
    /// Records of finished requests still kept.
    pub finished_records: usize,
    pub speculation: SpeculationStats,
}

/// Counts of guessed tokens. Tokens that a grammar forces are no guesses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpeculationStats {
    /// Guesses that the lookup offered, whatever was chosen of them, and those that the model's block made.
    pub num_proposed_tokens: u64,
    /// Times that a step verified drafts of a sequence.
    pub num_drafts: u64,
    /// The drafts that were verified then: guesses that were chosen and found room.
    pub num_draft_tokens: u64,
    pub num_accepted_tokens: u64,
    /// Accepted drafts by their place behind the last token that was known.
    pub num_accepted_tokens_per_pos: Vec<u64>,
    /// Tokens that were computed to guess: by the model's block, or by the draft model with all that it lacked.
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
