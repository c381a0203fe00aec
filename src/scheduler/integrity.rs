//! Checks the invariants that hold between two calls.

use hashbrown::HashMap;

use super::Scheduler;
use super::sequence::{Sequence, State};
use crate::{Error, Result};

impl Scheduler {
    /// # Errors
    /// `Error::Internal` naming the broken invariant (of the queues or of the KV cache).
    pub fn check_integrity(&self) -> Result<()> {
        let broken = |problem| Error::internal(format!("scheduler: {problem}"));
        self.check_queues().map_err(broken)?;
        let mut kv = self.kv_cache.write();
        kv.tick(0);
        if kv.config().states.is_some() {
            self.sequences.iter().try_for_each(|(_, seq)| check_states(seq)).map_err(broken)?;
        }
        let block_size = kv.config().block_size;
        self.sequences.iter().try_for_each(|(_, seq)| check_draft_model(seq, block_size)).map_err(broken)?;
        kv.check_integrity()?;
        let live = self.sequences.iter().map(|(_, seq)| &seq.blocks);
        kv.check_owners(live.chain(self.in_flight.iter().flat_map(|step| &step.held)))
    }

    fn check_queues(&self) -> std::result::Result<(), String> {
        if self.slots.len() != self.sequences.len() || self.slots.len() != self.running.len() + self.num_waiting() {
            return Err(format!(
                "{} ids, {} sequences, {} running, {} waiting",
                self.slots.len(),
                self.sequences.len(),
                self.running.len(),
                self.num_waiting()
            ));
        }
        if !self.running.is_sorted() {
            return Err("the running sequences are out of order".into());
        }
        let mut live = HashMap::new();
        for (slot, seq) in &self.sequences {
            check_sequence(seq)?;
            let is_running = self.running.binary_search(&(seq.key, slot)).is_ok();
            let is_waiting = self.flows.get(seq.flow).waiting.get(&seq.key) == Some(&slot);
            *live.entry(seq.flow).or_default() += 1;
            if is_running != (seq.state == State::Running) || is_waiting != (seq.state == State::Waiting) {
                return Err(format!("{:?} is {:?} but is in another queue", seq.id, seq.state));
            }
            if self.slots.get(&seq.id) != Some(&slot) {
                return Err(format!("{:?} is not found by its id", seq.id));
            }
            if seq.in_flight > self.in_flight.len() {
                return Err(format!("{:?} is in {} of {} steps", seq.id, seq.in_flight, self.in_flight.len()));
            }
        }
        if self.running.len() > self.config.max_num_seqs {
            return Err(format!("{} sequences run, {} may", self.running.len(), self.config.max_num_seqs));
        }
        self.flows.check(&live, self.num_waiting())
    }
}

fn check_sequence(seq: &Sequence) -> std::result::Result<(), String> {
    let drafted = if seq.in_flight > 0 { seq.drafts.len() } else { 0 };
    let order = [seq.num_computed, seq.num_scheduled, seq.tokens.len() + seq.num_expected.max(drafted), seq.max_len];
    if !order.is_sorted() {
        return Err(format!("{:?}: computed, scheduled, tokens, limit are {order:?}", seq.id));
    }
    if seq.num_expected > seq.in_flight {
        return Err(format!("{:?} expects {} tokens of {} steps", seq.id, seq.num_expected, seq.in_flight));
    }
    if (seq.num_computed < seq.num_scheduled) != (seq.in_flight > 0) {
        return Err(format!("{:?}: {order:?} with {} steps in flight", seq.id, seq.in_flight));
    }
    if !seq.drafts.is_empty() && (seq.state == State::Waiting || seq.tokens.len() + seq.drafts.len() >= seq.max_len) {
        return Err(format!("{:?} is {:?} with {} drafts after {order:?}", seq.id, seq.state, seq.drafts.len()));
    }
    if seq.state == State::Waiting && (!seq.blocks.is_empty() || seq.num_scheduled > 0) {
        return Err(format!("{:?} waits but holds blocks", seq.id));
    }
    Ok(())
}

/// Checks that the draft model has not computed more than the model, and that no block is marked beyond that.
fn check_draft_model(seq: &Sequence, block_size: usize) -> std::result::Result<(), String> {
    let computed = [seq.blocks.num_drafted() * block_size, seq.num_draft_computed, seq.num_computed];
    match computed.is_sorted() {
        true => Ok(()),
        false => Err(format!("{:?}: drafted in blocks, drafted and computed are {computed:?}", seq.id)),
    }
}

/// Checks that each step's first state exists, and that no state is kept for a draft that no step computes.
fn check_states(seq: &Sequence) -> std::result::Result<(), String> {
    let (drafts, kept) = (if seq.in_flight > 0 { seq.drafts.len() } else { 0 }, seq.blocks.num_kept_states());
    if kept > drafts {
        return Err(format!("{:?} keeps {kept} states before {drafts} drafts", seq.id));
    }
    let ends = [seq.num_computed, seq.num_scheduled];
    match ends.iter().find(|end| **end > 0 && seq.blocks.state_at(**end).is_none()) {
        Some(end) => Err(format!("{:?} has no state after {end} tokens", seq.id)),
        None => Ok(()),
    }
}
