//! Decides where snapshots of recurrent states are taken. A state cannot be cut back, so a prefix-cache hit can only
//! end where a state was saved. These positions are block ends:
//! - the last one in the prompt that leaves a token to compute: the same prompt, or a longer one, continues there;
//! - every `snapshot_interval` tokens of a prompt: another prompt that shares only a part of it continues there;
//! - the end of the cached keys and values without a state, when a prompt starts: two prompts have that part in common,
//!   so a third is likely to;
//! - each one that generation passes. Only the last of these is kept (it is *rolling*), unless another sequence has
//!   used the previous one: the next turn of a conversation continues there. Each costs one state write per block,
//!   while every step of the block reads and writes a state anyway.
//!
//! Snapshots use slots that no sequence needs. They leave the slots that running sequences lack, and those of waiting
//! sequences that could start.

use std::ops::Range;

use super::Scheduler;
use super::sequence::Sequence;
use crate::kv_cache::{KvCache, KvCacheConfig, Snapshot};

impl Sequence {
    /// Returns the snapshots that a step of these positions should take.
    pub(super) fn snapshots_in(&self, positions: Range<usize>, kv: &KvCacheConfig) -> Vec<Snapshot> {
        let Some(states) = kv.states.filter(|_| kv.enable_prefix_caching) else { return Vec::new() };
        let first = positions.start / kv.block_size + 1;
        let ends = (first..=positions.end / kv.block_size).map(|end| end * kv.block_size);
        let wanted = ends.filter_map(|position| {
            let is_rolling = position > self.last_end;
            let is_kept = [self.last_end, self.shared_end].contains(&position)
                || position.is_multiple_of(states.snapshot_interval);
            (is_rolling || is_kept).then_some(Snapshot { position, is_rolling })
        });
        wanted.collect()
    }
}

impl Scheduler {
    /// Returns the number of state slots that running sequences lack.
    pub(super) fn slots_lacking(&self, kv: &KvCache) -> usize {
        self.running.iter().map(|&(_, slot)| kv.slots_lacking(&self.sequences[slot].blocks)).sum()
    }

    /// Returns the number of state slots that snapshots and drafts must leave free.
    pub(super) fn kept_for_sequences(&self, kv: &KvCache) -> usize {
        let Some(states) = kv.config().states else { return 0 };
        let places = self.config.max_num_seqs.saturating_sub(self.running.len()).min(self.num_waiting());
        self.slots_lacking(kv) + places * states.slots_per_seq
    }
}
