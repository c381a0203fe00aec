//! Guessed tokens: several of a sequence are verified by one step, and as many are guessed as pay.
//!
//! `lookup` finds guesses in the sequence's own text, or a block of the model or a draft model makes them; `guesser`
//! knows how often they are right, `costs` how long a step of more rows takes. From these `Speculator::choose` finds
//! the number of drafts with which the next step brings the most tokens per time, for all of its sequences together:
//! with one sequence, whose steps leave a device idle, mostly all that are offered; with many, where another row costs
//! as much as it brings, none. The choice changes speed alone: the scheduler's drafts are verified by sampling each
//! place as it would be sampled without them.

mod costs;
mod guesser;
mod lookup;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use guesser::{Guesser, Guesses};

use self::costs::Costs;
use crate::config::SpeculativeConfig;
use crate::scheduler::{ScheduledSeq, SeqId, Step};

/// Tokens per time have to grow by this factor: by less they may as well shrink, since rates and times are estimates.
const LEAST_GAIN: f64 = 1.02;

/// Decides how many guesses become drafts.
#[derive(Debug)]
pub(super) struct Speculator {
    config: SpeculativeConfig,
    costs: Costs,
    /// Drafts of a step for which there is room.
    most: usize,
}

impl Speculator {
    /// `most` is how many drafts a step has room for.
    pub(super) fn new(config: SpeculativeConfig, most: usize) -> Self {
        Self { config, costs: Costs::default(), most }
    }

    /// Makes what guesses for one sequence.
    pub(super) fn guesser(&self, prompt: &Arc<[u32]>) -> Guesser {
        Guesser::new(&self.config, Arc::clone(prompt))
    }

    /// Learns from the time that a step took, unless it had prompt tokens.
    pub(super) fn record(&mut self, step: &Step, micros: u64) {
        let is_decode = |seq: &ScheduledSeq| seq.num_tokens == seq.samples.len();
        if step.seqs.iter().all(is_decode) {
            let num_seqs = step.seqs.len();
            self.costs.record(num_seqs, step.batch.num_tokens() - num_seqs, micros);
        }
    }

    /// The drafts of a step of `num_seqs` sequences, those with offers among them. Sequences without drafts are not
    /// listed.
    pub(super) fn choose(&self, offers: Vec<(SeqId, Guesses)>, num_seqs: usize) -> HashMap<SeqId, Vec<u32>> {
        let mut chosen = HashMap::new();
        let Some(curve) = self.costs.curve(num_seqs).filter(|_| !offers.is_empty()) else { return chosen };
        // Each draft is right if all before it are: the likeliest of all sequences come first.
        let mut chances: Vec<(f64, usize)> = Vec::new();
        for (index, (_, guesses)) in offers.iter().enumerate() {
            let all = std::iter::successors(Some(guesses.first), |chance| Some(chance * guesses.next));
            chances.extend(all.take(guesses.tokens.len()).map(|chance| (chance, index)));
        }
        chances.sort_by(|a, b| b.0.total_cmp(&a.0));
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
        for ((seq, guesses), count) in offers.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
            let mut drafts = guesses.tokens;
            drafts.truncate(count);
            chosen.insert(seq, drafts);
        }
        chosen
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
        (SeqId(seq), Guesses { tokens: (0..8).collect(), first, next })
    }

    /// Drafts for each of the sequences, whose guesses are right at these rates.
    fn counts(speculator: &Speculator, rates: &[f64], num_seqs: usize) -> Vec<usize> {
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
        let speculator = speculator(1, 8, |rows| 995 + 5 * rows as u64);
        assert_eq!(counts(&speculator, &[0.95], 1), [8]);
        assert_eq!(counts(&speculator, &[0.5], 1), [6]);
        assert_eq!(counts(&speculator, &[0.1], 1), [2]);
        assert_eq!(counts(&speculator, &[0.02], 1), [0], "it would gain less than the estimates are good for");
        assert_eq!(counts(&speculator, &[0.0], 1), [0]);
    }

    /// A match that is a poor guess is tried as far as the run behind it would be long, where it begins.
    #[test]
    fn runs_are_longer_than_their_beginnings() {
        let speculator = speculator(1, 8, |rows| 900 + 100 * rows as u64);
        let count = |first, next| speculator.choose(vec![offer(0, first, next)], 1).get(&SeqId(0)).map_or(0, Vec::len);
        assert_eq!([count(0.5, 0.5), count(0.5, 0.95), count(0.95, 0.95), count(0.2, 0.2)], [2, 8, 8, 1]);
    }

    /// With rows that cost as much as they can bring nothing is guessed, however good the guesses are.
    #[test]
    fn dear_rows_are_not_used() {
        let linear = speculator(32, 64, |rows| 100 * rows as u64);
        assert_eq!(counts(&linear, &[0.99; 32], 32), [0; 32]);
        // Half of a step's time is there without rows: a sure draft costs half of what it brings.
        let half = speculator(32, 64, |rows| 3200 + 100 * rows as u64);
        let all = counts(&half, &[0.95; 32], 32);
        assert_eq!(all.iter().sum::<usize>(), 64, "as many as there is room for");
        assert_eq!(counts(&half, &[0.4; 32], 32), [0; 32]);
        // Sequences that repeat what was there have drafts, others none.
        let mut rates = [0.1; 32];
        rates[7] = 0.9;
        let chosen = counts(&half, &rates, 32);
        assert!(chosen[7] >= 4 && chosen.iter().sum::<usize>() == chosen[7], "{chosen:?}");
    }

    /// Drafts of which none is right are not made, even where steps with them seem to be shorter.
    #[test]
    fn wrong_drafts_are_not_used_for_their_time() {
        let speculator = speculator(2, 8, |rows| if rows == 2 { 1000 } else { 900 });
        assert_eq!(counts(&speculator, &[0.01, 0.0], 2), [0, 0]);
        assert_eq!(counts(&speculator, &[0.2, 0.0], 2), [8, 0]);
    }

    /// Steps grow from what is known, and not before it is known how long they take without drafts.
    #[test]
    fn first_drafts_are_few() {
        let unknown = Speculator::new(SpeculativeConfig::default(), 64);
        assert_eq!(counts(&unknown, &[0.9], 1), [0]);
        assert_eq!(counts(&speculator(1, 0, |_| 1000), &[0.9], 1), [3]);
        assert_eq!(counts(&speculator(1, 3, |_| 1000), &[0.9], 1), [7]);
        assert_eq!(counts(&speculator(32, 0, |_| 1000), &[0.9; 4], 32).iter().sum::<usize>(), 11);
        // Rows that turn out to be dear are not tried further.
        assert_eq!(counts(&speculator(1, 3, |rows| 900 * rows as u64), &[0.9], 1), [0]);
        let narrow = Speculator { most: 2, ..speculator(1, 3, |_| 1000) };
        assert_eq!(counts(&narrow, &[0.9], 1), [2]);
    }
}
