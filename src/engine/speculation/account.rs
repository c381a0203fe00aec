//! Decides whether a draft model may start on another sequence, from the time that drafting has cost and saved so far.
//!
//! Before a draft model can draft for a sequence, it has to compute the tokens that it lacks. Only afterwards is it
//! known whether that pays. So the cost of this work and the gain of the draft tokens are booked. After a net loss no
//! further sequence starts until the loss is made up for. Gains of other sequences make up for it, and so does a
//! hundredth of the time of steps without drafts.
//!
//! Trying therefore costs about a hundredth of the time where it never pays. Where it pays, the account stays open,
//! even if a few sequences end too early. Small and large batches have separate accounts, since drafting may pay with
//! one sequence but not with many.

use std::collections::BTreeMap;

/// The share of the time without draft tokens that may be spent on trying them.
const SHARE: f64 = 0.01;
/// The loss, in steps, that is allowed if draft tokens are known to be accepted often enough.
const LOST_STEPS: f64 = 32.0;
/// Gains and losses beyond the time of this many steps are forgotten.
const MOST_STEPS: f64 = 64.0;

/// Microseconds that draft tokens have saved (negative: cost), by the number of sequences rounded down to a power of
/// two.
#[derive(Debug, Default)]
pub(super) struct Account(BTreeMap<u32, f64>);

impl Account {
    /// True if a draft model may start to catch up with another of `num_seqs` sequences. A step of these without draft
    /// tokens takes `base` microseconds. `is_known`: true if recent draft tokens were worth it.
    pub(super) fn is_open(&self, num_seqs: usize, base: f64, is_known: bool) -> bool {
        let least = if is_known { -LOST_STEPS * base } else { 0.0 };
        self.0.get(&load(num_seqs)).is_none_or(|balance| *balance >= least)
    }

    /// Books a step with draft tokens, or with work for them. It took `micros` for `num_tokens` tokens. A step without
    /// them would have taken `base` for one token per sequence.
    pub(super) fn book(&mut self, num_seqs: usize, num_tokens: usize, base: f64, micros: u64) {
        let saved = base * num_tokens as f64 / num_seqs.max(1) as f64 - micros as f64;
        let balance = self.0.entry(load(num_seqs)).or_default();
        *balance = (*balance + saved).clamp(-MOST_STEPS * base, MOST_STEPS * base);
    }

    /// Books a step without draft tokens.
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

    /// Books steps that take this many microseconds more than others and yield as many tokens.
    fn lose(account: &mut Account, num_seqs: usize, micros: u64) {
        account.book(num_seqs, num_seqs, BASE, 10_000 + micros);
    }

    #[test]
    fn losses_are_made_up_for() {
        let mut account = Account::default();
        assert!(account.is_open(32, BASE, false));
        lose(&mut account, 32, 5000);
        assert_eq!([31, 32, 63, 64].map(|num_seqs| account.is_open(num_seqs, BASE, false)), [true, false, false, true]);
        // The loss is a hundredth of 50 steps.
        (0..49).for_each(|_| account.make_up(32, 10_000));
        assert!(!account.is_open(32, BASE, false));
        account.make_up(33, 10_000);
        assert!(account.is_open(32, BASE, false));
        // Steps without draft tokens build up no credit.
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
