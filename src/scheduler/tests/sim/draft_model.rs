//! The draft model of the simulator. It has its own shadow, and reads it whenever it computes.

use std::cmp::Reverse;

use super::device::{attend, first_read};
use super::{Sim, mix};
use crate::batch::{Batch, GroupKind, NULL_BLOCK, TO_DRAFT};
use crate::{ScheduledSeq, SeqId, Step};

impl Sim {
    fn full_groups(&self) -> Vec<usize> {
        (0..self.config.groups.len()).filter(|&g| self.config.groups[g].kind == GroupKind::Full).collect()
    }

    /// Computes the draft model's tokens before the oldest step is launched. It catches up with some sequences by a few
    /// tokens.
    pub(super) fn plan_drafts(&mut self) {
        let Some(mut step) = self.in_flight.pop_front() else { return };
        let chance = |id: &&SeqId| mix(id.0, self.num_steps).is_multiple_of(2);
        let catching_up: Vec<SeqId> = match self.config.draft_lags {
            true => self.live.keys().filter(chance).copied().collect(),
            false => Vec::new(),
        };
        let most = 1 + (mix(3, self.num_steps) % 9) as usize;
        let first = self.scheduler.plan_drafts(&mut step, &catching_up, most);
        self.compute_first(&step, &first, &catching_up, most);
        self.in_flight.push_front(step);
    }

    fn compute_first(&mut self, step: &Step, first: &Batch, catching_up: &[SeqId], most: usize) {
        let is_drafted = |seq: &&ScheduledSeq| step.drafts(seq).contains(&TO_DRAFT);
        let mut parts: Vec<&ScheduledSeq> = step.seqs.iter().filter(is_drafted).collect();
        parts.sort_by_key(|seq| Reverse(seq.num_drafts()));
        assert_eq!(first.logits_indices.len(), parts.len());
        let num_drafted = parts.len();
        let of_step = |id: &SeqId| step.seqs.iter().find(|seq| seq.id == *id);
        let others = catching_up.iter().filter_map(of_step).filter(|seq| !is_drafted(seq) && !seq.drafted.is_empty());
        parts.extend(others);
        assert_eq!(first.num_seqs(), parts.len(), "{first:?}");
        assert!(first.num_tokens() <= self.config.max_num_batched_tokens);
        let groups = if self.config.draft_lags { self.full_groups() } else { Vec::new() };
        let mut caught_up = 0;
        for (part, seq) in parts.iter().enumerate() {
            let (rows, live) = (first.tokens_of(part), &self.live[&seq.id]);
            let has_logits = first.logits_indices.contains(&(rows.end as u32 - 1));
            let positions = &first.positions[rows.clone()];
            assert_eq!(has_logits, part < num_drafted);
            if has_logits {
                assert_eq!(positions.last().map(|last| *last as usize), Some(seq.start));
                assert!(self.config.draft_lags || rows.len() == 1);
                self.num_behind += rows.len() as u64 - 1;
            } else {
                caught_up += rows.len();
                assert!(positions.iter().all(|position| (*position as usize) < seq.start));
            }
            for row in rows {
                let position = first.positions[row] as usize;
                assert_eq!(first.token_ids[row], live.tokens[position], "input token of {:?}", seq.id);
                for &g in &groups {
                    let slot = first.groups[g].slot_mapping[row];
                    assert_ne!(slot, NULL_BLOCK);
                    self.draft_shadow[g][slot as usize] = live.names[position];
                }
            }
        }
        assert!(caught_up <= most);
        self.num_caught_up += caught_up as u64;
        for (part, seq) in parts.iter().enumerate() {
            for &g in &groups {
                let read = attend(first, g, part, GroupKind::Full, &self.draft_shadow[g], self.config.block_size);
                for (position, name) in read {
                    assert_eq!(name, self.live[&seq.id].names[position], "{:?} is drafted of foreign K/V", seq.id);
                }
            }
        }
    }

    /// Writes the draft tokens of the oldest step, except each sequence's last, which were computed to make the next
    /// ones.
    pub(super) fn write_drafts(&mut self) {
        let groups = if self.config.draft_lags { self.full_groups() } else { Vec::new() };
        let Some(step) = self.in_flight.front() else { return };
        for (s, seq) in step.seqs.iter().enumerate().filter(|(_, seq)| seq.drafted.end > seq.start) {
            let live = self.live[&seq.id].with_drafts(seq.num_drafts());
            for &g in &groups {
                for (row, position) in step.batch.tokens_of(s).zip(seq.start..seq.drafted.end).skip(1) {
                    let slot = step.batch.groups[g].slot_mapping[row] as usize;
                    self.draft_shadow[g][slot] = live.names[position];
                }
            }
        }
    }

    /// Counts the hit tokens that the draft model has and lacks, for sequences of a step that had no blocks before.
    pub(super) fn count_drafted_hits(&mut self, step: &Step, waiting: &[SeqId]) {
        for seq in step.seqs.iter().filter(|seq| self.config.draft_lags && waiting.contains(&seq.id)) {
            let drafted = self.scheduler.sequences[self.scheduler.slots[&seq.id]].num_draft_computed;
            self.num_drafted_hits[0] += drafted as u64;
            self.num_drafted_hits[1] += (seq.start - drafted) as u64;
        }
    }

    /// Checks that the draft model has its computed tokens of each sequence that is not in a step in flight.
    pub(super) fn check_drafted(&self) {
        let bs = self.config.block_size;
        for (id, live) in &self.live {
            let seq = &self.scheduler.sequences[self.scheduler.slots[id]];
            if !self.config.draft_lags {
                assert_eq!(seq.num_draft_computed, seq.num_computed, "{id:?}");
                continue;
            }
            for g in self.full_groups().into_iter().filter(|_| seq.in_flight == 0) {
                for position in first_read(GroupKind::Full, seq.num_computed)..seq.num_draft_computed {
                    let slot = seq.blocks.table(g)[position / bs].0 as usize * bs + position % bs;
                    assert_eq!(self.draft_shadow[g][slot], live.names[position], "{id:?} at {position}, group {g}");
                }
            }
        }
    }
}
