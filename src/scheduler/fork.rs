//! Forks: several sequences share the computed tokens of one, and are then scheduled like any others.

use super::sequence::{Key, Sequence, State};
use super::{Scheduler, SeqId};
use crate::{Error, Result};

impl Scheduler {
    /// Makes `child` a copy of `parent` with `token` in place of the parent's first sampled token. Must be called right
    /// after the commit of the parent's first sampled token, before the parent is finished.
    ///
    /// If there is a slot within `max_num_seqs`, the child shares all the parent's blocks and begins with the parent's
    /// recurrent state. Otherwise it waits at its parent's position in the order, like a preempted sequence, and begins
    /// with what the prefix cache holds.
    ///
    /// # Errors
    /// `Internal` if the parent is not at that point, or the child's id is in use.
    pub fn fork(&mut self, parent: SeqId, child: SeqId, token: u32, now: u64) -> Result<()> {
        let slot = self.slots.get(&parent).copied();
        let slot = slot.ok_or_else(|| Error::internal(format!("fork of {parent:?}, which does not exist")))?;
        let serial = self.take_serial();
        let seq = &mut self.sequences[slot];
        let prompt_len = seq.tokens.prompt_len();
        let is_ready = seq.tokens.len() == prompt_len + 1 && seq.num_scheduled == prompt_len;
        if seq.state != State::Running || seq.in_flight > 0 || !is_ready {
            return Err(Error::internal(format!("fork of {parent:?}, which has not just sampled its first token")));
        }
        if self.slots.contains_key(&child) {
            return Err(Error::internal(format!("fork into {child:?}, which is in use")));
        }
        let has_place = self.running.len() < self.config.max_num_seqs;
        let (state, num_computed, blocks) = match has_place {
            true => (State::Running, prompt_len, self.kv_cache.write().fork(&mut seq.blocks)?),
            false => (State::Waiting, 0, self.kv_cache.read().new_sequence()),
        };
        let num_draft_computed = if has_place { seq.num_draft_computed } else { 0 };
        let key = Key { serial, ..seq.key };
        let forked = Sequence {
            id: child,
            key,
            state,
            uncached: seq.tokens.len(),
            tokens: seq.tokens.with_first(token),
            drafts: Vec::new(),
            all_logits: false,
            will_fork: false,
            extras: seq.extras.clone(),
            blocks,
            chain: seq.chain.clone(),
            num_computed,
            num_draft_computed,
            num_scheduled: num_computed,
            born_after: self.last_step,
            passed: None,
            created_at: now,
            last_access: now,
            access_count: 0,
            // Earlier preemptions were the parent's.
            num_preemptions: 0,
            ..*seq
        };
        let flow = forked.flow;
        self.flows.join_again(flow);
        let slot = self.sequences.insert(forked);
        self.slots.insert(child, slot);
        match has_place {
            true => self.insert_running(key, slot),
            false => self.flows.wait(flow, key, slot),
        }
        Ok(())
    }
}
