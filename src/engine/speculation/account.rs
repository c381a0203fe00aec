//! Says whether another sequence may be computed with a draft model, by what that has cost and brought at each load.
//!
//! Before a draft model guesses for a sequence it computes what it lacks of it, and whether that pays is known only
//! behind it. So such work is booked, and so is what the guesses bring: where it has cost more than it brought, no
//! further sequence begins until that is made up for, by guesses for others or by the hundredth part of the time of
//! steps without any. Trying thus takes about a hundredth of the time wherever it fails, and where it pays the account
//! stays open, also when a few sequences end before they were worth it. Few sequences and many have accounts of their
//! own, since what fails with many pays with one.

use std::collections::BTreeMap;

/// The part of the time without guesses that may be spent on trying them.
const SHARE: f64 = 0.01;
/// The time of so many steps may be lost where guesses are known to be right often enough.
const LOST_STEPS: f64 = 32.0;
/// Gains and losses beyond the time of so many steps are forgotten.
const MOST_STEPS: f64 = 64.0;

/// Microseconds that guesses have saved, or cost where negative, by the number of sequences rounded to powers of two.
#[derive(Debug, Default)]
pub(super) struct Account(BTreeMap<u32, f64>);

impl Account {
    /// Whether a draft model may compute what it lacks of a further one of `num_seqs` sequences, whose steps without
    /// guesses take `base` microseconds; `is_known`: it was seen lately that its guesses are worth it.
    pub(super) fn is_open(&self, num_seqs: usize, base: f64, is_known: bool) -> bool {
        let least = if is_known { -LOST_STEPS * base } else { 0.0 };
        self.0.get(&load(num_seqs)).is_none_or(|balance| *balance >= least)
    }

    /// Books a step with guesses, or with work for some: it took `micros` for `num_tokens` tokens, and without it would
    /// have taken `base` for one of each sequence.
    pub(super) fn book(&mut self, num_seqs: usize, num_tokens: usize, base: f64, micros: u64) {
        let saved = base * num_tokens as f64 / num_seqs.max(1) as f64 - micros as f64;
        let balance = self.0.entry(load(num_seqs)).or_default();
        *balance = (*balance + saved).clamp(-MOST_STEPS * base, MOST_STEPS * base);
    }

    /// Books a step without.
    pub(super) fn make_up(&mut self, num_seqs: usize, micros: u64) {
        if let Some(balance) = self.0.get_mut(&load(num_seqs)).filter(|balance| **balance < 0.0) {
            *balance = (*balance + SHARE * micros as f64).min(0.0);
        }
    }
}

fn load(num_seqs: usize) -> u32 {
    num_seqs.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: f64 = 10_000.0;

    /// Steps that take so many microseconds more than others and bring as many tokens.
    fn lose(account: &mut Account, num_seqs: usize, micros: u64) {
        account.book(num_seqs, num_seqs, BASE, 10_000 + micros);
    }

    #[test]
    fn losses_are_made_up_for() {
        let mut account = Account::default();
        assert!(account.is_open(32, BASE, false));
        lose(&mut account, 32, 5000);
        assert_eq!([31, 32, 63, 64].map(|num_seqs| account.is_open(num_seqs, BASE, false)), [true, false, false, true]);
        // A hundredth of 50 steps.
        (0..49).for_each(|_| account.make_up(32, 10_000));
        assert!(!account.is_open(32, BASE, false));
        account.make_up(33, 10_000);
        assert!(account.is_open(32, BASE, false));
        // Steps without guesses save nothing up.
        (0..100).for_each(|_| account.make_up(32, 10_000));
        lose(&mut account, 32, 1);
        assert!(!account.is_open(32, BASE, false));
        // Half as many tokens again in the same time.
        account.book(32, 48, BASE, 10_000);
        lose(&mut account, 32, 4000);
        assert!(account.is_open(32, BASE, false), "what was saved pays for it");
        lose(&mut account, 32, 2000);
        assert!(!account.is_open(32, BASE, false));
    }

    #[test]
    fn what_is_known_to_pay_may_lose_more() {
        let mut account = Account::default();
        lose(&mut account, 1, 320_000);
        assert_eq!([true, false].map(|is_known| account.is_open(1, BASE, is_known)), [true, false]);
        lose(&mut account, 1, 1);
        assert!(!account.is_open(1, BASE, true));
    }

    #[test]
    fn old_gains_and_losses_are_forgotten() {
        let mut account = Account::default();
        lose(&mut account, 1, 9_000_000);
        (0..6_399).for_each(|_| account.make_up(1, 10_000));
        assert!(!account.is_open(1, BASE, false));
        // Sums of hundredths are not exact.
        (0..2).for_each(|_| account.make_up(1, 10_000));
        assert!(account.is_open(1, BASE, false));
        (0..1000).for_each(|_| account.book(1, 3, BASE, 10_000));
        lose(&mut account, 1, 640_001);
        assert!(!account.is_open(1, BASE, false));
    }
}
