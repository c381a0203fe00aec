//! Sequences that skip steps until their grammars have computed the allowed tokens.
//!
//! A step computes the logits of such a sequence like any other's. If the mask is not ready when the step has run, the
//! row is kept. The token is picked from it once the mask is computed. Meanwhile the steps continue without the
//! sequence. The token is the one that would have been picked at once, so no text depends on how long its masks take.
//!
//! A picked token is also kept while another text of the grammar computes masks ahead, since both use one lexer.

use std::mem;
use std::time::{Duration, Instant};

use super::{Core, Sampled, forced_behind};
use crate::guidance::Rule;
use crate::ids::request_of;
use crate::output::FinishReason;
use crate::request::sequence::Sequence;
use crate::request::{Parked, Pick};
use crate::sampler::{Picked, Sampler};
use crate::scheduler::{Accepted, SeqId, Step};
use crate::{Error, Result};

/// How long a step waits for all of its masks. Most take 50 microseconds. Tests count steps on loaded machines.
pub(super) const PATIENCE: Duration = if cfg!(test) { Duration::from_secs(60) } else { Duration::from_millis(2) };

/// Returns the sequence that a step computed a token for. Forks are picked from the row of their parent.
fn origin(pick: &Pick) -> SeqId {
    pick.fork_of.unwrap_or(pick.seq)
}

impl Core {
    /// Parks the sequences of a step that cannot get their tokens now.
    pub(super) fn park_late(&mut self, sampled: &mut Sampled) {
        let deadline = Instant::now() + PATIENCE;
        let before = self.parked.len();
        let rows = mem::take(&mut sampled.taken.rows);
        self.parked.extend(rows.into_iter().map(|(seq, row)| (seq, Parked::Row(row))));
        let picks = &mut sampled.taken.picks;
        let groups = picks.chunk_by(|pick, next| origin(pick) == origin(next));
        let late = groups.filter(|group| !self.take_turns(group, deadline)).map(|group| origin(&group[0]));
        for seq in late.collect::<Vec<SeqId>>() {
            let group = picks.extract_if(.., |pick| origin(pick) == seq).collect();
            self.parked.push((seq, Parked::Picks(group)));
        }
        for (seq, _) in &self.parked[before..] {
            if let Some(sequence) = self.requests.sequence_mut(*seq) {
                sequence.parked = true;
            }
        }
    }

    /// True if a step contains a parked sequence, including one that was preempted and recomputed.
    pub(super) fn holds_parked(&self, step: &Step) -> bool {
        self.parked.iter().any(|(seq, _)| step.seqs.iter().any(|scheduled| scheduled.id == *seq))
    }

    /// True if all sequences of these picks can take them without waiting.
    fn take_turns(&mut self, picks: &[Pick], deadline: Instant) -> bool {
        let requests = &mut self.requests;
        let mut take = |pick: &Pick| requests.sequence_mut(pick.seq).is_none_or(|one| one.take_turn_by(deadline));
        let taken = picks.iter().all(&mut take);
        if !taken {
            self.pass_turns(picks.iter().map(|pick| pick.seq));
        }
        taken
    }

    /// Lets other texts of the grammars continue to compute ahead.
    pub(super) fn pass_turns(&mut self, seqs: impl Iterator<Item = SeqId>) {
        for seq in seqs {
            if let Some(sequence) = self.requests.sequence_mut(seq) {
                sequence.pass_turn();
            }
        }
    }

    /// Gives parked sequences the tokens that are now known, and ends those whose grammars have failed.
    pub(super) fn resume_parked(&mut self) -> Result<()> {
        for (seq, parked) in mem::take(&mut self.parked) {
            let sampler = &mut self.sampler;
            let Some(sequence) = self.requests.sequence_mut(seq).filter(|sequence| !sequence.ended()) else {
                continue;
            };
            // A preempted sequence first recomputes its tokens.
            if !self.scheduler.can_take(seq) {
                self.parked.push((seq, parked));
                continue;
            }
            let picks = match parked {
                Parked::Picks(picks) => picks,
                Parked::Row(row) if !sequence.settle_by(Instant::now()) => {
                    self.parked.push((seq, Parked::Row(row)));
                    continue;
                }
                Parked::Row(row) => match pick(seq, sequence, &row, sampler) {
                    Ok(pick) => vec![pick],
                    Err(error) => {
                        let now = self.now();
                        self.end_request(request_of(seq).0, FinishReason::Error, Some(error), now);
                        continue;
                    }
                },
            };
            match self.take_turns(&picks, Instant::now()) {
                true => self.resume(seq, picks)?,
                false => self.parked.push((seq, Parked::Picks(picks))),
            }
        }
        Ok(())
    }

    /// Gives a parked sequence and its forks their tokens.
    fn resume(&mut self, seq: SeqId, picks: Vec<Pick>) -> Result<()> {
        let now = self.now();
        let own: Vec<u32> = picks.iter().filter(|pick| pick.fork_of.is_none()).map(|pick| pick.token).collect();
        if let Some(request) = self.requests.of_mut(seq) {
            // The proposer learns the tokens. Nothing is drafted after structured output begins.
            request.propose(seq, &own);
        }
        if let Some(sequence) = self.requests.sequence_mut(seq) {
            sequence.parked = false;
        }
        let drafts = forced_behind(&self.requests, &picks[..own.len()], &Step::default());
        let drafts = &drafts[..drafts.len().min(self.config.most_drafts())];
        self.scheduler.take_late(seq, Accepted { tokens: &own, drafts })?;
        self.give(picks, now)
    }
}

/// Picks the next token of a sequence from its row, once its rule is known.
fn pick(seq: SeqId, sequence: &Sequence, row: &[f32], sampler: &mut Sampler) -> Result<Pick> {
    let picked = match sequence.rule(0)? {
        Rule::Masked(mask) => sampler.pick_from_row(row, sequence.sampler(), Some(mask))?,
        Rule::Free => sampler.pick_from_row(row, sequence.sampler(), None)?,
        Rule::Forced(token) => {
            let top = sequence.sampler().params().logprobs;
            Picked { token, logprobs: top.map(|top| sampler.logprobs(row, token, top)).transpose()? }
        }
        Rule::Awaited => return Err(Error::internal("a token was picked without its mask")),
    };
    Ok(Pick { seq, token: picked.token, fork_of: None, logprobs: picked.logprobs })
}
