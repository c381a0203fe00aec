//! A simulated device that only shadows its memory, and the checks of every batch that it gets.

use std::collections::HashMap;

use super::Sim;
use super::request::{Live, Request};
use crate::batch::{Batch, GroupKind, NULL_BLOCK};
use crate::images::{ImageSpan, Sight};
use crate::{ScheduledSeq, SeqId, Step};

/// The result of a step for one sequence: the tokens that it accepts, and drafts to follow.
pub(super) struct Sampled {
    pub(super) id: SeqId,
    pub(super) tokens: Vec<u32>,
    pub(super) drafts: Vec<u32>,
}

impl Sim {
    pub(super) fn forward(&mut self, step: &Step) -> Vec<Sampled> {
        let (batch, bs) = (&step.batch, self.config.block_size);
        for copy in &batch.block_copies {
            let src = copy.src as usize * bs;
            self.shadow[copy.group as usize].copy_within(src..src + bs, copy.dst as usize * bs);
        }
        // The sequences include the drafts that the step computes. Sequences that ended meanwhile are computed in vain.
        let drafted = |seq: &ScheduledSeq| {
            let live = self.live.get(&seq.id)?;
            let num_drafts = (seq.start + seq.num_tokens).saturating_sub(live.tokens.len());
            Some((live.with_drafts(num_drafts), num_drafts))
        };
        let lives: Vec<Option<(Live, usize)>> = step.seqs.iter().map(drafted).collect();
        // All writes precede all reads, since the order of the sequences must not matter.
        for (g, tables) in batch.groups.iter().enumerate() {
            for (s, live) in lives.iter().enumerate() {
                let Some((live, _)) = live else { continue };
                for t in batch.tokens_of(s) {
                    let position = batch.positions[t] as usize;
                    assert_eq!(batch.token_ids[t], live.tokens[position], "input token of {:?}", step.seqs[s].id);
                    self.shadow[g][tables.slot_mapping[t] as usize] = live.names[position];
                }
            }
        }
        self.run_states(step, &lives);
        let mut sampled = Vec::new();
        for (s, (seq, drafted)) in step.seqs.iter().zip(lives).enumerate() {
            let Some((drafted, num_drafts)) = drafted else { continue };
            for g in 0..batch.groups.len() {
                let read = attend(batch, g, s, self.config.groups[g].kind, &self.shadow[g], bs);
                for (position, name) in read {
                    assert_eq!(name, drafted.names[position], "{:?} read foreign K/V at {position}, group {g}", seq.id);
                }
            }
            let end = seq.start + seq.num_tokens;
            let live = self.live.get_mut(&seq.id).unwrap();
            check_images(batch, s, &live.request);
            if live.request.all_logits && live.logits_seen < live.request.prompt.len() {
                // A preempted prompt is recomputed, but each position's logits come once and without a gap.
                assert!(live.logits_seen >= seq.start);
                assert_eq!(seq.logits.len(), end.saturating_sub(live.logits_seen), "{seq:?}");
                live.logits_seen = live.logits_seen.max(end);
            }
            // The last token predicts one, and so does each draft after it.
            assert_eq!(seq.samples.len(), (end + 1).saturating_sub(live.tokens.len()), "{seq:?}");
            if !seq.samples.is_empty() {
                let live = live.clone();
                sampled.push(self.sample(seq.id, live, num_drafts));
            }
        }
        sampled
    }

    /// Samples a token for each row, up to the first that differs from its draft or ends the sequence.
    fn sample(&mut self, id: SeqId, mut live: Live, num_drafts: usize) -> Sampled {
        let known = live.tokens.len();
        loop {
            let token = live.next_token();
            live.push(token);
            let accepted = live.tokens.len() - known;
            let is_as_drafted = accepted <= num_drafts && live.drafts[accepted - 1] == token;
            if !is_as_drafted || live.is_end(self.config.max_model_len) {
                break;
            }
        }
        let drafts = live.draft();
        let tokens = live.tokens.split_off(known);
        self.num_accepted[tokens.len()] += 1;
        self.num_rejected += (num_drafts + 1 - tokens.len()) as u64;
        Sampled { id, tokens, drafts }
    }

    /// Checks that the batch's arrays agree, and that each sequence writes only to its own slots.
    pub(super) fn check_shape(&self, step: &Step) {
        let batch = &step.batch;
        let n = batch.num_tokens();
        assert!(n <= self.config.max_num_batched_tokens);
        assert_eq!(batch.positions.len(), n);
        assert_eq!((batch.cu_seqlens_q.len(), batch.cu_seqlens_q[0]), (step.seqs.len() + 1, 0));
        assert!(batch.rope_positions.is_empty() || batch.rope_positions.len() == n);
        let rows: Vec<usize> = step.seqs.iter().flat_map(|seq| seq.logits.clone()).collect();
        assert_eq!(rows, (0..batch.logits_indices.len()).collect::<Vec<_>>());
        let drafts: usize = step.seqs.iter().map(ScheduledSeq::num_drafts).sum();
        assert!(drafts <= self.scheduler.config.max_drafts);
        let most = step.seqs.len() + self.scheduler.config.max_drafts;
        let pieces = step.pieces(most);
        assert!(pieces.iter().cloned().flatten().eq(0..rows.len()) && pieces.iter().all(|piece| piece.len() <= most));
        for seq in &step.seqs {
            let parts =
                pieces.iter().flat_map(|piece| step.parts(piece).map(move |(whole, part)| (piece, whole, part)));
            let of_seq: Vec<_> = parts.filter(|(_, whole, _)| whole.id == seq.id).collect();
            let positions = of_seq.iter().flat_map(|(_, _, part)| part.positions().map(|(position, _)| position));
            assert!(positions.eq(seq.positions().map(|(position, _)| position)), "{seq:?} in {of_seq:?}");
            let samples = of_seq.iter().map(|(_, _, part)| part.samples.len()).filter(|count| *count > 0);
            assert!(samples.eq(Some(seq.samples.len()).filter(|count| *count > 0)), "{seq:?} in {of_seq:?}");
        }
        assert!(batch.logits_indices.is_sorted_by(|a, b| a < b));
        for (s, seq) in step.seqs.iter().enumerate() {
            let tokens = batch.tokens_of(s);
            assert_eq!(tokens.len(), seq.num_tokens);
            let end = seq.start + seq.num_tokens;
            assert!(batch.positions[tokens.clone()].iter().copied().eq(seq.start as u32..end as u32));
            assert_eq!(batch.context_lens[s] as usize, end);
            let rows = seq.logits.clone().map(|row| batch.logits_indices[row] as usize);
            assert!(rows.eq(tokens.end - seq.logits.len()..tokens.end));
            assert!(seq.samples.len() <= seq.logits.len() && seq.samples.end == seq.logits.end, "{seq:?}");
        }
        self.check_states(step);
        for (g, tables) in batch.groups.iter().enumerate() {
            let mut written = HashMap::new();
            for other in &self.in_flight {
                for (s, seq) in other.seqs.iter().enumerate() {
                    for t in other.batch.tokens_of(s) {
                        written.insert(other.batch.groups[g].slot_mapping[t], seq.id);
                    }
                }
            }
            for (s, seq) in step.seqs.iter().enumerate() {
                for t in batch.tokens_of(s) {
                    let before = written.insert(tables.slot_mapping[t], seq.id);
                    assert_eq!(before, None, "slot {} is written twice", tables.slot_mapping[t]);
                }
            }
        }
    }

    /// Checks that the scheduler's sequences equal the model's, token for token. For each computed position, the shadow
    /// must hold its K and V, in blocks that no step in flight writes.
    pub(super) fn check_contents(&self) {
        self.check_drafted();
        assert_eq!(self.scheduler.sequences.len(), self.live.len());
        for (id, live) in &self.live {
            let seq = &self.scheduler.sequences[self.scheduler.slots[id]];
            assert!(seq.tokens.range(0..usize::MAX).eq(live.tokens.iter().copied()), "{id:?}");
            if seq.in_flight > 0 {
                continue;
            }
            let known = live.known_drafts(&live.drafts);
            assert!(known.starts_with(&seq.drafts) || live.drafts.starts_with(&seq.drafts), "{id:?}");
            if self.config.states.is_some() && seq.num_computed > 0 {
                let slot = seq.blocks.state_at(seq.num_computed).unwrap();
                assert_eq!(self.slots[slot.0 as usize], live.names[seq.num_computed - 1], "state of {id:?}");
            }
            for (g, group) in self.config.groups.iter().enumerate() {
                let first = first_read(group.kind, seq.num_computed);
                for position in first..seq.num_computed {
                    let block = seq.blocks.table(g)[position / self.config.block_size];
                    let slot = block.0 as usize * self.config.block_size + position % self.config.block_size;
                    assert_eq!(self.shadow[g][slot], live.names[position], "{id:?} at {position}, group {g}");
                }
            }
        }
    }
}

/// Returns the first position that the token at `position` attends to.
pub(super) fn first_read(kind: GroupKind, position: usize) -> usize {
    match kind {
        GroupKind::Full | GroupKind::Bidirectional { .. } => 0,
        GroupKind::Sliding { window } => (position + 1).saturating_sub(window as usize),
        GroupKind::Chunked { size } => position / size as usize * size as usize,
    }
}

/// Returns the positions that attention reads for sequence `s`, and the names found there.
pub(super) fn attend(
    batch: &Batch,
    g: usize,
    s: usize,
    kind: GroupKind,
    shadow: &[u64],
    bs: usize,
) -> Vec<(usize, u64)> {
    let first_query = batch.positions[batch.tokens_of(s).start] as usize;
    let table = batch.block_table(g, s);
    let read = first_read(kind, first_query)..batch.context_lens[s] as usize;
    read.map(|position| {
        let block = table[position / bs];
        assert_ne!(block, NULL_BLOCK, "position {position} is read but its block was given up");
        (position, shadow[block as usize * bs + position % bs])
    })
    .collect()
}

/// Checks the images and the RoPE positions that a batch has for a sequence.
fn check_images(batch: &Batch, seq: usize, request: &Request) {
    let images = request.extras.images.as_deref();
    let runs = &batch.images.runs;
    let end = *batch.positions[batch.tokens_of(seq)].last().unwrap() as usize + 1;
    for token in batch.tokens_of(seq) {
        let position = batch.positions[token];
        let run = runs.iter().find(|run| run.tokens().contains(&token));
        let row = run.map(|run| (run.image.0, u64::from(run.first_row) + (token - run.tokens().start) as u64));
        assert_eq!(row, request.image_row(position as usize), "input of position {position}");
        let rope = batch.rope_positions.get(token);
        match images.filter(|images| images.mrope) {
            Some(images) => {
                let position = position as usize;
                assert_eq!(rope, images.rope_positions(position..position + 1).next().as_ref());
            }
            None => assert!(rope.is_none_or(|&rope| rope == [position; 3])),
        }
    }
    if let Some(images) = images.filter(|images| images.sight != Sight::Causal) {
        let is_cut = |span: &ImageSpan| span.tokens().start < end && end < span.tokens().end;
        assert!(!images.spans.iter().any(is_cut), "a step ends at {end}, within an image");
    }
}
