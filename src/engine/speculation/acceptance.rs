//! Acceptance rates of draft tokens: for one sequence, and over all sequences of a model.

/// The factor by which earlier observations lose weight with each new one.
const DECAY: f64 = 0.95;
/// The number of imaginary draft tokens that stand for the prior.
const PRIOR: f64 = 2.0;
/// A sequence's acceptance rate is forgotten after this many tokens without model-made draft tokens.
pub(super) const MEMORY: usize = 512;
/// The typical rate is forgotten after this many steps without any draft tokens, since the next text may differ.
const TYPICAL_MEMORY: usize = 64;

/// The assumed rate of a model's draft tokens, and of any draft after an accepted one, before any observation.
pub(super) const PRIOR_RATE: f64 = 0.8;

/// Decayed counts of right and wrong draft tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acceptance {
    right: f64,
    wrong: f64,
}

impl Acceptance {
    pub(super) fn new(rate: f64) -> Self {
        Self { right: PRIOR * rate, wrong: PRIOR * (1.0 - rate) }
    }

    pub(super) fn record(&mut self, is_right: bool) {
        let right = f64::from(u8::from(is_right));
        self.right = self.right * DECAY + right;
        self.wrong = self.wrong * DECAY + 1.0 - right;
    }

    pub(super) fn rate(self) -> f64 {
        self.right / (self.right + self.wrong)
    }
}

/// The acceptance rates of a model's draft tokens over all sequences. They are used for sequences without recent
/// observations, so that each sequence need not find out by itself. They are forgotten when none were verified for a
/// while.
#[derive(Debug)]
pub(super) struct Typical {
    first: Acceptance,
    next: Acceptance,
    /// True if any draft tokens were verified since the rates were last reset.
    is_known: bool,
    /// Steps since any draft tokens were verified.
    num_steps: usize,
}

impl Default for Typical {
    fn default() -> Self {
        let [first, next] = [Acceptance::new(PRIOR_RATE); 2];
        Self { first, next, is_known: false, num_steps: 0 }
    }
}

impl Typical {
    /// Records `num_proposed` consecutive draft tokens, of which the first `num_right` were right.
    pub(super) fn note(&mut self, num_proposed: usize, num_right: usize) {
        (self.is_known, self.num_steps) = (true, 0);
        for place in 0..num_proposed.min(num_right + 1) {
            let rate = if place == 0 { &mut self.first } else { &mut self.next };
            rate.record(place < num_right);
        }
    }

    /// Counts a step that verified no draft tokens.
    pub(super) fn pass(&mut self) {
        self.num_steps += 1;
        if self.num_steps > TYPICAL_MEMORY {
            *self = Self::default();
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns the rates for a sequence without observations: of its first draft token, and of each later one if all
    /// before it are right.
    pub(super) fn rates(&self) -> (f64, f64) {
        (self.first.rate(), self.next.rate())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_what_comes() {
        let mut acceptance = Acceptance::new(0.8);
        (0..60).for_each(|_| acceptance.record(false));
        assert!(acceptance.rate() < 0.05);
        (0..40).for_each(|_| acceptance.record(true));
        assert!(acceptance.rate() > 0.8);
    }

    #[test]
    fn what_one_sequence_shows_is_taken_for_others() {
        let mut typical = Typical::default();
        assert!(!typical.is_known());
        assert_eq!(typical.rates(), (0.8, 0.8));
        // The second token of each three is wrong, so the third one is not evaluated.
        (0..60).for_each(|_| typical.note(3, 1));
        let (first, next) = typical.rates();
        assert!(first > 0.95 && next < 0.05, "{first} {next}");
        (0..TYPICAL_MEMORY).for_each(|_| typical.pass());
        assert_eq!((typical.rates(), typical.is_known()), ((first, next), true));
        typical.pass();
        assert_eq!((typical.rates(), typical.is_known()), ((0.8, 0.8), false));
    }
}
