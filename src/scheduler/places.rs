//! Decides which sequence gives up its slot when one client uses all of `max_num_seqs`, and why a sequence waits.
//!
//! A client may have no running sequence of a priority. Then it may take the slot of another client's newest sequence,
//! if that client has the most running at that priority, and at least two. It does so only if everything else that it
//! needs is available, so the slot is used at once.
//!
//! The client that loses a slot still has one, so it may not take one back. So between two arrivals or ends each client
//! takes at most one slot, and slots do not move back and forth. The oldest sequence of a client never loses its slot
//! this way, so it advances. Blocks are not taken: a sequence that lacks them waits until some are free.

use super::reason::WaitingReason;
use super::sequence::Key;
use super::{Scheduler, SeqId};

impl Scheduler {
    /// Returns the waiting sequences and why each waits, in the order of their turns as far as known.
    pub fn waiting(&self) -> Vec<(SeqId, WaitingReason)> {
        let mut flows: Vec<_> = self.flows.with_waiting().collect();
        flows.sort_by_key(|(_, flow)| (flow.priority, flow.served, flow.waiting.keys().next().copied()));
        let first = flows.first().map(|(id, flow)| (*id, flow.priority));
        let mut waiting = Vec::with_capacity(self.num_waiting());
        for (id, flow) in flows {
            let general = match first {
                Some((first, _)) if first == id => self.held_back,
                Some((_, priority)) if priority == flow.priority => WaitingReason::ClientShare,
                _ => WaitingReason::Priority,
            };
            for slot in flow.waiting.values() {
                let seq = &self.sequences[*slot];
                let passed = seq.passed.filter(|(step, _)| *step >= self.last_step).map(|(_, reason)| reason);
                waiting.push((seq.id, passed.unwrap_or(general)));
            }
        }
        waiting
    }

    /// Returns the running sequence whose slot the first waiting sequence of a flow may take.
    pub(super) fn place_for(&self, flow: usize) -> Option<usize> {
        if self.flows.get(flow).num_running() > 0 {
            return None;
        }
        let priority = self.flows.get(flow).priority;
        let newest = |(key, slot): &(Key, usize)| (key.priority == priority).then_some(*slot);
        let candidates = self.running.iter().rev().filter_map(newest);
        // The first match is the newest sequence, even if several flows have equally many.
        let most = candidates.clone().map(|slot| self.flows.get(self.sequences[slot].flow).num_running()).max()?;
        let mut candidates = candidates.filter(|slot| self.flows.get(self.sequences[*slot].flow).num_running() == most);
        candidates.next().filter(|slot| most > 1 && self.sequences[*slot].in_flight == 0)
    }

    /// True if a waiting sequence could take a slot, were no step in flight.
    pub(super) fn wants_place(&self) -> bool {
        if self.running.len() < self.config.max_num_seqs {
            return false;
        }
        let first = self.flows.with_waiting().min_by_key(|(_, flow)| (flow.priority, flow.served));
        let Some((_, first)) = first.filter(|(_, flow)| flow.num_running() == 0) else { return false };
        let others = self.running.iter().filter(|(key, _)| key.priority == first.priority);
        others.map(|(_, slot)| self.sequences[*slot].flow).any(|flow| self.flows.get(flow).num_running() > 1)
    }
}
