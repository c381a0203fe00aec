//! Speculative decoding: one step verifies several draft tokens of a sequence, and only as many are drafted as pay off.
//!
//! `lookup` finds draft tokens in the sequence's own text; otherwise a block of the model or a draft model computes
//! them. `proposer` tracks how often they are right, and `costs` how long a step with more rows takes. From these,
//! `Speculator::choose` finds the number of drafts that maximizes tokens per time over all sequences of the next step.
//!
//! A single sequence leaves a device mostly idle, so usually all proposed tokens are used. With many sequences another
//! row may cost as much as it gains, so none are. The choice only affects speed: each draft is verified by sampling its
//! position as if there were no drafts.
//!
//! A draft model computes only the sequences that it drafts for. If drafts for another sequence would pay, it catches
//! up with it piece by piece, one piece per step, as far as `account` allows. Meanwhile that sequence has no draft
//! tokens.

mod acceptance;
mod account;
mod costs;
mod lookup;
mod proposer;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use proposer::{Proposal, Proposer};

use self::acceptance::Typical;
use self::account::Account;
use self::costs::{Costs, Curve};
use crate::config::{SpeculativeConfig, SpeculativeMethod};
use crate::scheduler::{ScheduledSeq, SeqId, Step};

/// Tokens per time must grow by this factor. Smaller gains are within the error of the estimates.
const LEAST_GAIN: f64 = 1.02;
/// Maximum tokens that a draft model may lack of a sequence and still draft for it at once. It computes them together
/// with the token before its first draft token, which takes little longer. Each step without draft tokens adds one.
const MOST_MISSING: usize = 16;
/// Maximum tokens by which a draft model catches up per step, so that a step takes little longer than others.
pub(super) const CATCH_UP_TOKENS: usize = 512;

/// Decides how many proposed tokens become drafts.
#[derive(Debug)]
pub(super) struct Speculator {
    config: SpeculativeConfig,
    costs: Costs,
    /// The most drafts of one step.
    most: usize,
    typical: Typical,
    account: Account,
    /// Sequences that a draft model is catching up with, in this order.
    catching_up: Vec<SeqId>,
}

impl Speculator {
    /// `most`: the most drafts of one step.
    pub(super) fn new(config: SpeculativeConfig, most: usize) -> Self {
        let (costs, typical, account) = (Costs::default(), Typical::default(), Account::default());
        Self { config, costs, most, typical, account, catching_up: Vec::new() }
    }

    /// Creates the proposer of one sequence.
    pub(super) fn proposer(&self, prompt: &Arc<[u32]>) -> Proposer {
        Proposer::new(&self.config, Arc::clone(prompt))
    }

    /// Returns the sequences that a draft model should catch up with before the next step, as far as there is room.
    pub(super) fn catching_up(&self) -> &[SeqId] {
        &self.catching_up
    }

    /// Records the time of a step that sampled `num_tokens` tokens, unless it had prompt tokens.
    pub(super) fn record(&mut self, step: &Step, micros: u64, num_tokens: usize) {
        self.typical.pass();
        if !step.seqs.iter().all(ScheduledSeq::is_decode) {
            return;
        }
        let num_seqs = step.seqs.len();
        let num_drafts = step.batch.num_tokens() - num_seqs;
        let catches_up = step.seqs.iter().any(|seq| seq.num_drafts() == 0 && !seq.drafted.is_empty());
        if self.config.method == SpeculativeMethod::DraftModel {
            match self.costs.curve(num_seqs).and_then(|curve| curve.time(num_seqs)) {
                Some(base) if catches_up || num_drafts > 0 => self.account.book(num_seqs, num_tokens, base, micros),
                _ => self.account.make_up(num_seqs, micros),
            }
        }
        if !catches_up {
            self.costs.record(num_seqs, num_drafts, micros);
        }
    }

    /// Records `num_drafts` drafts of a sequence, of which the first `num_right` were right.
    pub(super) fn note_verified(&mut self, num_drafts: usize, num_right: usize) {
        self.typical.note(num_drafts, num_right);
    }

    /// Returns the drafts of a step of `num_seqs` sequences, which include those with offers. Sequences without drafts
    /// are not listed. It also updates the sequences that a draft model should catch up with.
    pub(super) fn choose(&mut self, mut offers: Vec<(SeqId, Proposal)>, num_seqs: usize) -> HashMap<SeqId, Vec<u32>> {
        let Some(curve) = self.costs.curve(num_seqs).filter(|_| !offers.is_empty()) else { return HashMap::new() };
        for (_, proposal) in offers.iter_mut().filter(|(_, proposal)| !proposal.is_measured) {
            (proposal.first, proposal.next) = self.typical.rates();
        }
        let is_ready = |proposal: &Proposal| proposal.missing <= MOST_MISSING;
        let mut counts = self.counts(&offers, |_| true, &curve, num_seqs);
        let wanted = offers.iter().zip(&counts).filter(|(_, count)| **count > 0).map(|(offer, _)| offer);
        let lacking: Vec<&(SeqId, Proposal)> = wanted.filter(|(_, proposal)| !is_ready(proposal)).collect();
        if !lacking.is_empty() {
            let (base, is_known) = (curve.time(num_seqs), self.typical.is_known() && !curve.is_untried());
            let is_open = base.is_some_and(|base| self.account.is_open(num_seqs, base, is_known));
            let goes_on = |seq: &SeqId| is_open || self.catching_up.contains(seq);
            let mut begun: Vec<_> = lacking.into_iter().filter(|(seq, _)| goes_on(seq)).collect();
            // The sequence that lacks the fewest tokens comes first.
            begun.sort_by_key(|(_, proposal)| proposal.missing);
            self.catching_up = begun.into_iter().map(|(seq, _)| *seq).collect();
            // The cost of drafts is first measured with all sequences ready: a few could not pay for the many.
            counts = match curve.is_untried() && !self.catching_up.is_empty() {
                true => vec![0; offers.len()],
                false => self.counts(&offers, is_ready, &curve, num_seqs),
            };
        } else {
            self.catching_up.clear();
        }
        let mut chosen = HashMap::new();
        for ((seq, proposal), count) in offers.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
            let mut drafts = proposal.tokens;
            drafts.truncate(count);
            chosen.insert(seq, drafts);
        }
        chosen
    }

    /// Returns the number of drafts of each offer that maximizes tokens per time. Only offers for which `may_be` holds
    /// are used.
    fn counts(
        &self,
        offers: &[(SeqId, Proposal)],
        may_be: impl Fn(&Proposal) -> bool,
        curve: &Curve,
        num_seqs: usize,
    ) -> Vec<usize> {
        // A draft counts only if all before it are right, so the likeliest drafts of all sequences come first.
        let mut chances: Vec<(f64, usize)> = Vec::new();
        for (index, (_, proposal)) in offers.iter().enumerate().filter(|(_, (_, proposal))| may_be(proposal)) {
            let all = std::iter::successors(Some(proposal.first), |chance| Some(chance * proposal.next));
            chances.extend(all.take(proposal.tokens.len()).map(|chance| (chance, index)));
        }
        let missing = |index: usize| offers[index].1.missing;
        chances.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| missing(a.1).cmp(&missing(b.1))));
        let base = curve.time(num_seqs).unwrap_or(0.0);
        let (mut tokens, mut best, mut count) = (num_seqs as f64, num_seqs as f64 / base * LEAST_GAIN, 0);
        for (i, (chance, _)) in chances.iter().take(self.most).enumerate() {
            tokens += chance;
            // Drafts cannot make a step shorter. Where they seem to, it is chance, and drafts must pay by their tokens.
            let Some(time) = curve.time(num_seqs + i + 1).map(|time| time.max(base)) else { break };
            if tokens / time > best {
                (best, count) = (tokens / time, i + 1);
            }
        }
        let mut counts = vec![0; offers.len()];
        chances[..count].iter().for_each(|&(_, index)| counts[index] += 1);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a speculator that knows steps of `num_seqs` sequences with up to `drafted` drafts.
    fn speculator(num_seqs: usize, drafted: usize, micros: impl Fn(usize) -> u64) -> Speculator {
        let mut speculator = Speculator::new(SpeculativeConfig::default(), 64);
        for drafts in 0..=drafted {
            (0..3).for_each(|_| speculator.costs.record(num_seqs, drafts, micros(num_seqs + drafts)));
        }
        speculator
    }

    fn offer(seq: u64, first: f64, next: f64) -> (SeqId, Proposal) {
        (SeqId(seq), Proposal { tokens: (0..8).collect(), first, next, is_measured: true, missing: 0 })
    }

    /// Returns the number of drafts of each sequence, whose draft tokens are right at these rates.
    fn counts(speculator: &mut Speculator, rates: &[f64], num_seqs: usize) -> Vec<usize> {
        let offers = (0u64..).zip(rates).map(|(seq, rate)| offer(seq, *rate, *rate)).collect();
        let chosen = speculator.choose(offers, num_seqs);
        assert!(
            chosen
                .values()
                .all(|drafts| !drafts.is_empty() && drafts[..] == (0..8).collect::<Vec<u32>>()[..drafts.len()])
        );
        (0u64..).zip(rates).map(|(seq, _)| chosen.get(&SeqId(seq)).map_or(0, Vec::len)).collect()
    }

    /// A step of one sequence takes 1000, and each further row 5, so a draft pays if it is right once in 200 times.
    #[test]
    fn cheap_rows_are_used_as_far_as_they_bring_tokens() {
        let mut speculator = speculator(1, 8, |rows| 995 + 5 * rows as u64);
        assert_eq!(counts(&mut speculator, &[0.95], 1), [8]);
        assert_eq!(counts(&mut speculator, &[0.5], 1), [6]);
        assert_eq!(counts(&mut speculator, &[0.1], 1), [2]);
        assert_eq!(counts(&mut speculator, &[0.02], 1), [0], "it would gain less than the estimates are good for");
        assert_eq!(counts(&mut speculator, &[0.0], 1), [0]);
    }

    /// A match with a low first rate is still tried as far as a run after it would be long.
    #[test]
    fn runs_are_longer_than_their_beginnings() {
        let mut speculator = speculator(1, 8, |rows| 900 + 100 * rows as u64);
        let mut count =
            |first, next| speculator.choose(vec![offer(0, first, next)], 1).get(&SeqId(0)).map_or(0, Vec::len);
        assert_eq!([count(0.5, 0.5), count(0.5, 0.95), count(0.95, 0.95), count(0.2, 0.2)], [2, 8, 8, 1]);
    }

    /// If rows cost as much as they can gain, nothing is drafted, however good the draft tokens are.
    #[test]
    fn dear_rows_are_not_used() {
        let mut linear = speculator(32, 64, |rows| 100 * rows as u64);
        assert_eq!(counts(&mut linear, &[0.99; 32], 32), [0; 32]);
        // Half of a step's time does not depend on rows, so a sure draft costs half of what it gains.
        let mut half = speculator(32, 64, |rows| 3200 + 100 * rows as u64);
        let all = counts(&mut half, &[0.95; 32], 32);
        assert_eq!(all.iter().sum::<usize>(), 64, "as many as there is room for");
        assert_eq!(counts(&mut half, &[0.4; 32], 32), [0; 32]);
        // Repetitive sequences get drafts, others none.
        let mut rates = [0.1; 32];
        rates[7] = 0.9;
        let chosen = counts(&mut half, &rates, 32);
        assert!(chosen[7] >= 4 && chosen.iter().sum::<usize>() == chosen[7], "{chosen:?}");
    }

    /// Wrong drafts are not used, even if steps with them seem to be shorter.
    #[test]
    fn wrong_drafts_are_not_used_for_their_time() {
        let mut speculator = speculator(2, 8, |rows| if rows == 2 { 1000 } else { 900 });
        assert_eq!(counts(&mut speculator, &[0.01, 0.0], 2), [0, 0]);
        assert_eq!(counts(&mut speculator, &[0.2, 0.0], 2), [8, 0]);
    }

    /// Step sizes grow from known ones, and only once the time without drafts is known.
    #[test]
    fn first_drafts_are_few() {
        let mut unknown = Speculator::new(SpeculativeConfig::default(), 64);
        assert_eq!(counts(&mut unknown, &[0.9], 1), [0]);
        assert_eq!(counts(&mut speculator(1, 0, |_| 1000), &[0.9], 1), [3]);
        assert_eq!(counts(&mut speculator(1, 3, |_| 1000), &[0.9], 1), [7]);
        assert_eq!(counts(&mut speculator(32, 0, |_| 1000), &[0.9; 4], 32).iter().sum::<usize>(), 11);
        // Rows that prove expensive are not tried further.
        assert_eq!(counts(&mut speculator(1, 3, |rows| 900 * rows as u64), &[0.9], 1), [0]);
        let mut narrow = Speculator { most: 2, ..speculator(1, 3, |_| 1000) };
        assert_eq!(counts(&mut narrow, &[0.9], 1), [2]);
    }

    fn lacking(seq: u64, missing: usize) -> (SeqId, Proposal) {
        let (seq, proposal) = offer(seq, 0.9, 0.9);
        (seq, Proposal { missing, ..proposal })
    }

    /// Returns the number of drafts of four sequences that lack these numbers of tokens, and the sequences to catch up
    /// with.
    fn chosen(speculator: &mut Speculator, missing: [usize; 4]) -> ([usize; 4], Vec<u64>) {
        let offers = (0u64..).zip(missing).map(|(seq, missing)| lacking(seq, missing)).collect();
        let chosen = speculator.choose(offers, 4);
        let counts = [0, 1, 2, 3].map(|seq| chosen.get(&SeqId(seq)).map_or(0, Vec::len));
        (counts, speculator.catching_up().iter().map(|seq| seq.0).collect())
    }

    /// A sequence that lacks much is caught up with and has no drafts meanwhile. Others get drafts once their cost is
    /// known.
    #[test]
    fn draft_models_catch_up_first() {
        let mut untried = speculator(4, 0, |_| 1000);
        assert_eq!(chosen(&mut untried, [0, 400, 16, 17]), ([0; 4], vec![3, 1]));
        assert_eq!(chosen(&mut untried, [1, 2, 16, 3]), ([1; 4], vec![]));
        let mut tried = speculator(4, 28, |_| 1000);
        assert_eq!(chosen(&mut tried, [0, 400, 16, 17]), ([8, 0, 8, 0], vec![3, 1]));
        let mut dear = speculator(4, 8, |rows| 1000 * rows as u64);
        assert_eq!(chosen(&mut dear, [0, 400, 16, 17]), ([0; 4], vec![]));
    }

    /// After a net loss no sequence starts, but those that have started continue. Sequences that lack nothing get
    /// drafts.
    #[test]
    fn losses_keep_others_from_beginning() {
        let mut speculator = speculator(4, 28, |_| 1000);
        assert_eq!(chosen(&mut speculator, [0, 400, 0, 0]).1, [1]);
        speculator.account.book(4, 4, 1000.0, 5000);
        assert_eq!(chosen(&mut speculator, [0, 200, 300, 0]), ([8, 0, 0, 8], vec![1]));
        assert_eq!(chosen(&mut speculator, [0, 0, 300, 0]), ([8, 8, 0, 8], vec![]));
        // The drafts are known to be right, or the loss is made up for.
        speculator.note_verified(1, 1);
        assert_eq!(chosen(&mut speculator, [0, 0, 300, 0]).1, [2]);
        speculator.typical = Typical::default();
        assert_eq!(chosen(&mut speculator, [0, 0, 0, 300]).1, [0; 0]);
        speculator.account.book(4, 24, 1000.0, 1000);
        assert_eq!(chosen(&mut speculator, [0, 0, 0, 300]).1, [3]);
    }

    /// Steps that catch up say nothing about the cost of drafts, but their cost is booked.
    #[test]
    fn steps_are_booked_for_what_they_do() {
        let mut step = Step::default();
        let seq = |id| ScheduledSeq { id, num_tokens: 1, start: 40, logits: 0..1, samples: 0..1, drafted: 0..0 };
        step.seqs = vec![seq(SeqId(0)), seq(SeqId(1))];
        step.batch.token_ids = vec![1, 2];
        let method = SpeculativeMethod::DraftModel;
        let mut speculator = Speculator::new(SpeculativeConfig { method, ..SpeculativeConfig::default() }, 64);
        (0..3).for_each(|_| speculator.record(&step, 1000, 2));
        let is_open = |speculator: &Speculator| speculator.account.is_open(2, 1000.0, false);
        assert!(is_open(&speculator));
        step.seqs[1].drafted = 0..30;
        (0..3).for_each(|_| speculator.record(&step, 2000, 2));
        assert_eq!(speculator.costs.curve(2).and_then(|curve| curve.time(2)), Some(1000.0));
        assert!(!is_open(&speculator));
        // A step with drafts that gains more than it costs.
        step.seqs[1] = ScheduledSeq { num_tokens: 6, samples: 0..6, drafted: 30..45, ..step.seqs[1].clone() };
        step.batch.token_ids = vec![1; 7];
        speculator.record(&step, 1500, 7);
        assert!(!is_open(&speculator));
        speculator.record(&step, 1500, 7);
        assert!(is_open(&speculator));
        assert!(speculator.costs.curve(2).is_some_and(|curve| !curve.is_untried()));
    }
}
