//! Says where snapshots of recurrent states are taken. A state cannot be cut back, so a sequence begins with what the
//! prefix cache holds only up to a position whose state was kept. The positions are ends of blocks:
//! - the last one in the prompt that leaves a token to compute: the same prompt, or a longer one, begins there;
//! - every `snapshot_interval` tokens of a prompt: another prompt that shares only a part of it begins there;
//! - the end of what the cache has keys and values of and no state, when a prompt begins: two prompts have that part in
//!   common, so a third is likely to;
//! - each one that generation passes. Only the last of these is kept (it is *rolling*), unless somebody has used the
//!   one before: the next turn of a conversation begins there. Each costs one write of a state, in a block's many steps
//!   that each read and write one.
//!
//! Snapshots take the slots that no sequence needs: not those that running sequences lack, nor those of sequences that
//! wait and could be given a place.

use std::ops::Range;

use super::Scheduler;
use super::sequence::Sequence;
use crate::kv_cache::{KvCache, KvCacheConfig, Snapshot};

impl Sequence {
    /// The snapshots that a step which computes these positions is to take.
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
    /// Slots of states that running sequences lack.
    pub(super) fn slots_lacking(&self, kv: &KvCache) -> usize {
        self.running.iter().map(|&(_, slot)| kv.slots_lacking(&self.sequences[slot].blocks)).sum()
    }

    /// Slots of states that snapshots and drafts leave free.
    pub(super) fn kept_for_sequences(&self, kv: &KvCache) -> usize {
        let Some(states) = kv.config().states else { return 0 };
        let places = self.config.max_num_seqs.saturating_sub(self.running.len()).min(self.num_waiting());
        self.slots_lacking(kv) + places * states.slots_per_seq
    }
}
