//! Guessed tokens: several of a sequence are verified by one step, and as many are guessed as pay.
//!
//! `lookup` finds guesses in the sequence's own text, or a block of the model or a draft model makes them; `guesser`
//! knows how often they are right, `costs` how long a step of more rows takes. From these `Speculator::choose` finds
//! the number of drafts with which the next step brings the most tokens per time, for all of its sequences together:
//! with one sequence, whose steps leave a device idle, mostly all that are offered; with many, where another row costs
//! as much as it brings, none. The choice changes speed alone: the scheduler's drafts are verified by sampling each
//! place as it would be sampled without them.
//!
//! A draft model is computed for sequences alone that it guesses for. Where guesses of one pay that it has not
//! computed, it catches up, a piece with each step, as far as `account` lets it; the sequence goes on without guesses
//! meanwhile.

mod acceptance;
mod account;
mod costs;
mod guesser;
mod lookup;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use guesser::{Guesser, Guesses};

use self::acceptance::Typical;
use self::account::Account;
use self::costs::{Costs, Curve};
use crate::config::{SpeculativeConfig, SpeculativeMethod};
use crate::scheduler::{ScheduledSeq, SeqId, Step};

/// Tokens per time have to grow by this factor: by less they may as well shrink, since rates and times are estimates.
const LEAST_GAIN: f64 = 1.02;
/// Tokens that a draft model may lack of a sequence that it guesses for at once: it computes them with the one that its
/// first guess follows, which takes hardly longer. Each step without guesses adds one.
const MOST_MISSING: usize = 16;
/// Tokens by which a draft model catches up with each step, at most: a step then takes little longer than others do.
pub(super) const CATCH_UP_TOKENS: usize = 512;

/// Decides how many guesses become drafts.
#[derive(Debug)]
pub(super) struct Speculator {
    config: SpeculativeConfig,
    costs: Costs,
    /// Drafts of a step for which there is room.
    most: usize,
    typical: Typical,
    account: Account,
    /// Sequences that a draft model catches up with, in the order in which it does.
    catching_up: Vec<SeqId>,
}

impl Speculator {
    /// `most` is how many drafts a step has room for.
    pub(super) fn new(config: SpeculativeConfig, most: usize) -> Self {
        let (costs, typical, account) = (Costs::default(), Typical::default(), Account::default());
        Self { config, costs, most, typical, account, catching_up: Vec::new() }
    }

    /// Makes what guesses for one sequence.
    pub(super) fn guesser(&self, prompt: &Arc<[u32]>) -> Guesser {
        Guesser::new(&self.config, Arc::clone(prompt))
    }

    /// The sequences that a draft model is to catch up with before the next step, as far as that has room.
    pub(super) fn catching_up(&self) -> &[SeqId] {
        &self.catching_up
    }

    /// Learns from the time that a step took which sampled `num_tokens` tokens, unless it had prompt tokens.
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

    /// Learns from so many drafts of a sequence, of which the first `num_right` were right.
    pub(super) fn note_verified(&mut self, num_drafts: usize, num_right: usize) {
        self.typical.note(num_drafts, num_right);
    }

    /// The drafts of a step of `num_seqs` sequences, those with offers among them. Sequences without drafts are not
    /// listed. Says as well what a draft model is to catch up with.
    pub(super) fn choose(&mut self, mut offers: Vec<(SeqId, Guesses)>, num_seqs: usize) -> HashMap<SeqId, Vec<u32>> {
        let Some(curve) = self.costs.curve(num_seqs).filter(|_| !offers.is_empty()) else { return HashMap::new() };
        for (_, guesses) in offers.iter_mut().filter(|(_, guesses)| !guesses.is_measured) {
            (guesses.first, guesses.next) = self.typical.rates();
        }
        let is_ready = |guesses: &Guesses| guesses.missing <= MOST_MISSING;
        let mut counts = self.counts(&offers, |_| true, &curve, num_seqs);
        let wanted = offers.iter().zip(&counts).filter(|(_, count)| **count > 0).map(|(offer, _)| offer);
        let lacking: Vec<&(SeqId, Guesses)> = wanted.filter(|(_, guesses)| !is_ready(guesses)).collect();
        if !lacking.is_empty() {
            let (base, is_known) = (curve.time(num_seqs), self.typical.is_known() && !curve.is_untried());
            let is_open = base.is_some_and(|base| self.account.is_open(num_seqs, base, is_known));
            let goes_on = |seq: &SeqId| is_open || self.catching_up.contains(seq);
            let mut begun: Vec<_> = lacking.into_iter().filter(|(seq, _)| goes_on(seq)).collect();
            // Whoever lacks least guesses first.
            begun.sort_by_key(|(_, guesses)| guesses.missing);
            self.catching_up = begun.into_iter().map(|(seq, _)| *seq).collect();
            // The cost of drafts is tried with all together: few of them would bear the cost of many.
            counts = match curve.is_untried() && !self.catching_up.is_empty() {
                true => vec![0; offers.len()],
                false => self.counts(&offers, is_ready, &curve, num_seqs),
            };
        } else {
            self.catching_up.clear();
        }
        let mut chosen = HashMap::new();
        for ((seq, guesses), count) in offers.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
            let mut drafts = guesses.tokens;
            drafts.truncate(count);
            chosen.insert(seq, drafts);
        }
        chosen
    }

    /// The number of drafts of each offer, of those that `may_be` chosen, with which a step brings the most tokens per
    /// time.
    fn counts(
        &self,
        offers: &[(SeqId, Guesses)],
        may_be: impl Fn(&Guesses) -> bool,
        curve: &Curve,
        num_seqs: usize,
    ) -> Vec<usize> {
        // Each draft is right if all before it are: the likeliest of all sequences come first.
        let mut chances: Vec<(f64, usize)> = Vec::new();
        for (index, (_, guesses)) in offers.iter().enumerate().filter(|(_, (_, guesses))| may_be(guesses)) {
            let all = std::iter::successors(Some(guesses.first), |chance| Some(chance * guesses.next));
            chances.extend(all.take(guesses.tokens.len()).map(|chance| (chance, index)));
        }
        let missing = |index: usize| offers[index].1.missing;
        chances.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| missing(a.1).cmp(&missing(b.1))));
        let base = curve.time(num_seqs).unwrap_or(0.0);
        let (mut tokens, mut best, mut count) = (num_seqs as f64, num_seqs as f64 / base * LEAST_GAIN, 0);
        for (i, (chance, _)) in chances.iter().take(self.most).enumerate() {
            tokens += chance;
            // Drafts do not make a step shorter: where they seem to, it is chance, and they are to bring tokens.
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

    /// A speculator that knows steps of so many sequences, with up to `drafted` drafts.
    fn speculator(num_seqs: usize, drafted: usize, micros: impl Fn(usize) -> u64) -> Speculator {
        let mut speculator = Speculator::new(SpeculativeConfig::default(), 64);
        for drafts in 0..=drafted {
            (0..3).for_each(|_| speculator.costs.record(num_seqs, drafts, micros(num_seqs + drafts)));
        }
        speculator
    }

    fn offer(seq: u64, first: f64, next: f64) -> (SeqId, Guesses) {
        (SeqId(seq), Guesses { tokens: (0..8).collect(), first, next, is_measured: true, missing: 0 })
    }

    /// Drafts for each of the sequences, whose guesses are right at these rates.
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

    /// A step of one sequence takes 1000 and 5 for each row more: a draft pays if it is right once in 200 times.
    #[test]
    fn cheap_rows_are_used_as_far_as_they_bring_tokens() {
        let mut speculator = speculator(1, 8, |rows| 995 + 5 * rows as u64);
        assert_eq!(counts(&mut speculator, &[0.95], 1), [8]);
        assert_eq!(counts(&mut speculator, &[0.5], 1), [6]);
        assert_eq!(counts(&mut speculator, &[0.1], 1), [2]);
        assert_eq!(counts(&mut speculator, &[0.02], 1), [0], "it would gain less than the estimates are good for");
        assert_eq!(counts(&mut speculator, &[0.0], 1), [0]);
    }

    /// A match that is a poor guess is tried as far as the run behind it would be long, where it begins.
    #[test]
    fn runs_are_longer_than_their_beginnings() {
        let mut speculator = speculator(1, 8, |rows| 900 + 100 * rows as u64);
        let mut count =
            |first, next| speculator.choose(vec![offer(0, first, next)], 1).get(&SeqId(0)).map_or(0, Vec::len);
        assert_eq!([count(0.5, 0.5), count(0.5, 0.95), count(0.95, 0.95), count(0.2, 0.2)], [2, 8, 8, 1]);
    }

    /// With rows that cost as much as they can bring nothing is guessed, however good the guesses are.
    #[test]
    fn dear_rows_are_not_used() {
        let mut linear = speculator(32, 64, |rows| 100 * rows as u64);
        assert_eq!(counts(&mut linear, &[0.99; 32], 32), [0; 32]);
        // Half of a step's time is there without rows: a sure draft costs half of what it brings.
        let mut half = speculator(32, 64, |rows| 3200 + 100 * rows as u64);
        let all = counts(&mut half, &[0.95; 32], 32);
        assert_eq!(all.iter().sum::<usize>(), 64, "as many as there is room for");
        assert_eq!(counts(&mut half, &[0.4; 32], 32), [0; 32]);
        // Sequences that repeat what was there have drafts, others none.
        let mut rates = [0.1; 32];
        rates[7] = 0.9;
        let chosen = counts(&mut half, &rates, 32);
        assert!(chosen[7] >= 4 && chosen.iter().sum::<usize>() == chosen[7], "{chosen:?}");
    }

    /// Drafts of which none is right are not made, even where steps with them seem to be shorter.
    #[test]
    fn wrong_drafts_are_not_used_for_their_time() {
        let mut speculator = speculator(2, 8, |rows| if rows == 2 { 1000 } else { 900 });
        assert_eq!(counts(&mut speculator, &[0.01, 0.0], 2), [0, 0]);
        assert_eq!(counts(&mut speculator, &[0.2, 0.0], 2), [8, 0]);
    }

    /// Steps grow from what is known, and not before it is known how long they take without drafts.
    #[test]
    fn first_drafts_are_few() {
        let mut unknown = Speculator::new(SpeculativeConfig::default(), 64);
        assert_eq!(counts(&mut unknown, &[0.9], 1), [0]);
        assert_eq!(counts(&mut speculator(1, 0, |_| 1000), &[0.9], 1), [3]);
        assert_eq!(counts(&mut speculator(1, 3, |_| 1000), &[0.9], 1), [7]);
        assert_eq!(counts(&mut speculator(32, 0, |_| 1000), &[0.9; 4], 32).iter().sum::<usize>(), 11);
        // Rows that turn out to be dear are not tried further.
        assert_eq!(counts(&mut speculator(1, 3, |rows| 900 * rows as u64), &[0.9], 1), [0]);
        let mut narrow = Speculator { most: 2, ..speculator(1, 3, |_| 1000) };
        assert_eq!(counts(&mut narrow, &[0.9], 1), [2]);
    }

    fn lacking(seq: u64, missing: usize) -> (SeqId, Guesses) {
        let (seq, guesses) = offer(seq, 0.9, 0.9);
        (seq, Guesses { missing, ..guesses })
    }

    /// The drafts of each of four sequences that lack so many tokens, and those that are caught up with.
    fn chosen(speculator: &mut Speculator, missing: [usize; 4]) -> ([usize; 4], Vec<u64>) {
        let offers = (0u64..).zip(missing).map(|(seq, missing)| lacking(seq, missing)).collect();
        let chosen = speculator.choose(offers, 4);
        let counts = [0, 1, 2, 3].map(|seq| chosen.get(&SeqId(seq)).map_or(0, Vec::len));
        (counts, speculator.catching_up().iter().map(|seq| seq.0).collect())
    }

    /// A sequence that lacks much is caught up with and has no drafts meanwhile; others that pay have theirs, once it
    /// is known what drafts cost.
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

    /// Where guesses have cost more than they brought nobody begins, but whoever has begun goes on, and whoever lacks
    /// nothing is guessed for.
    #[test]
    fn losses_keep_others_from_beginning() {
        let mut speculator = speculator(4, 28, |_| 1000);
        assert_eq!(chosen(&mut speculator, [0, 400, 0, 0]).1, [1]);
        speculator.account.book(4, 4, 1000.0, 5000);
        assert_eq!(chosen(&mut speculator, [0, 200, 300, 0]), ([8, 0, 0, 8], vec![1]));
        assert_eq!(chosen(&mut speculator, [0, 0, 300, 0]), ([8, 8, 0, 8], vec![]));
        // It is known that they are right, or made up for.
        speculator.note_verified(1, 1);
        assert_eq!(chosen(&mut speculator, [0, 0, 300, 0]).1, [2]);
        speculator.typical = Typical::default();
        assert_eq!(chosen(&mut speculator, [0, 0, 0, 300]).1, [0; 0]);
        speculator.account.book(4, 24, 1000.0, 1000);
        assert_eq!(chosen(&mut speculator, [0, 0, 0, 300]).1, [3]);
    }

    /// Steps that catch up tell nothing of what drafts cost, and are paid for.
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
        // A step with drafts that brings more than it costs.
        step.seqs[1] = ScheduledSeq { num_tokens: 6, samples: 0..6, drafted: 30..45, ..step.seqs[1].clone() };
        step.batch.token_ids = vec![1; 7];
        speculator.record(&step, 1500, 7);
        assert!(!is_open(&speculator));
        speculator.record(&step, 1500, 7);
        assert!(is_open(&speculator));
        assert!(speculator.costs.curve(2).is_some_and(|curve| !curve.is_untried()));
    }
}
