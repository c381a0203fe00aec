//! The simulated memory of recurrent states, and the checks of those of a batch.

use std::collections::HashMap;

use super::Sim;
use super::request::Live;
use crate::Step;
use crate::batch::NO_STATE;

/// A name that no prefix has.
const RUBBISH: u64 = u64::MAX;

impl Sim {
    /// Reads each sequence's first state, and saves those that should be saved. All reads precede all writes: no
    /// sequence writes what another reads, so the order must not matter.
    pub(super) fn run_states(&mut self, step: &Step, lives: &[Option<(Live, usize)>]) {
        if self.config.states.is_none() {
            return;
        }
        let states = &step.batch.states;
        for ((seq, live), read) in step.seqs.iter().zip(lives).zip(&states.reads) {
            let Some((live, _)) = live else { continue };
            match seq.start.checked_sub(1) {
                None => assert_eq!(*read, NO_STATE, "{seq:?}"),
                Some(last) => {
                    assert_eq!(self.slots[*read as usize], live.names[last], "{seq:?} began with slot {read}")
                }
            }
        }
        for (s, (seq, live)) in step.seqs.iter().zip(lives).enumerate() {
            let first = seq.start;
            for write in &states.writes[states.cu_writes[s] as usize..states.cu_writes[s + 1] as usize] {
                let last = first + write.num_tokens as usize - 1;
                let name = live.as_ref().map_or(RUBBISH, |(live, _)| live.names[last]);
                self.slots[write.slot as usize] = name;
            }
        }
    }

    /// Interrupts the step: everything that it writes may hold anything.
    pub(super) fn spoil(&mut self, step: &Step) {
        let block_size = self.config.block_size;
        for copy in &step.batch.block_copies {
            let dst = copy.dst as usize * block_size;
            self.shadow[copy.group as usize][dst..dst + block_size].fill(RUBBISH);
        }
        for (tables, shadow) in step.batch.groups.iter().zip(&mut self.shadow) {
            tables.slot_mapping.iter().for_each(|slot| shadow[*slot as usize] = RUBBISH);
        }
        step.batch.states.writes.iter().for_each(|write| self.slots[write.slot as usize] = RUBBISH);
    }

    /// Checks that the state arrays agree with the batch. Each sequence's last state is saved, and those before its
    /// drafts. Each slot is written once, and only read by the sequence that writes it.
    pub(super) fn check_states(&self, step: &Step) {
        let (batch, states) = (&step.batch, &step.batch.states);
        if self.config.states.is_none() {
            assert_eq!(*states, Default::default());
            return;
        }
        assert_eq!((states.reads.len(), states.cu_writes.len()), (step.seqs.len(), step.seqs.len() + 1));
        assert_eq!((states.cu_writes[0], states.cu_writes[step.seqs.len()] as usize), (0, states.writes.len()));
        let mut writers = HashMap::new();
        for (s, seq) in step.seqs.iter().enumerate() {
            let writes = &states.writes[states.cu_writes[s] as usize..states.cu_writes[s + 1] as usize];
            assert!(writes.is_sorted_by_key(|write| write.num_tokens), "{writes:?}");
            assert!(writes[0].num_tokens > 0 && writes[writes.len() - 1].num_tokens as usize == seq.num_tokens);
            let before_drafts = (seq.num_tokens - seq.num_drafts()) as u32;
            for drafted in before_drafts..seq.num_tokens as u32 {
                assert!(writes.iter().any(|write| write.num_tokens == drafted), "no state after {drafted} of {seq:?}");
            }
            let is_end = |tokens: u32| (seq.start + tokens as usize).is_multiple_of(self.config.block_size);
            for write in &writes[..writes.len() - 1] {
                assert!(write.num_tokens >= before_drafts || is_end(write.num_tokens), "{write:?}");
            }
            writes.iter().for_each(|write| assert_eq!(writers.insert(write.slot, s), None, "{write:?}"));
        }
        let foreign = |(s, read): (usize, &u32)| writers.get(read).is_some_and(|writer| *writer != s);
        assert!(!states.reads.iter().enumerate().any(foreign), "{states:?}");
        let num_drafts: usize = step.seqs.iter().map(|seq| seq.num_drafts()).sum();
        let bound = 2 * step.seqs.len() + batch.num_tokens() / self.config.block_size + num_drafts;
        assert!(states.writes.len() <= bound, "{} writes, {bound} are planned for", states.writes.len());
        // Other steps in flight do not read what it writes, except for the same sequence.
        for other in self.in_flight.iter().filter(|other| other.id != step.id) {
            for (seq, read) in other.seqs.iter().zip(&other.batch.states.reads) {
                let is_own = writers.get(read).is_none_or(|writer| step.seqs[*writer].id == seq.id);
                assert!(is_own, "{seq:?} reads slot {read}");
            }
        }
    }
}
