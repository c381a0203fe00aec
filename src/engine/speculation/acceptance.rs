//! How often guesses are right: those of one sequence, and those of a model in any sequence.

/// The weight of what was seen, each time something new is.
const DECAY: f64 = 0.95;
/// Guesses that are taken for seen before there are any.
const PRIOR: f64 = 2.0;
/// Tokens without guesses after which it is forgotten how often those that are computed were right.
pub(super) const MEMORY: usize = 512;
/// Steps without guesses of any sequence after which it is forgotten how often those of others were right: the next
/// text may be another one.
const TYPICAL_MEMORY: usize = 64;

/// The rate of guesses of a model, and of such behind others that were right, while nothing is known of them.
pub(super) const PRIOR_RATE: f64 = 0.8;

/// How many guesses were right, and how many wrong.
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

/// The rates of guesses that a model makes, in sequences of which nothing was seen yet or lately. So what one sequence
/// has shown is not tried with each of the others. They are forgotten when none were verified for a while.
#[derive(Debug)]
pub(super) struct Typical {
    first: Acceptance,
    next: Acceptance,
    /// Whether any were verified since it was forgotten how often they are right.
    is_known: bool,
    /// Steps since any were verified.
    num_steps: usize,
}

impl Default for Typical {
    fn default() -> Self {
        let [first, next] = [Acceptance::new(PRIOR_RATE); 2];
        Self { first, next, is_known: false, num_steps: 0 }
    }
}

impl Typical {
    /// Learns from so many guesses in a row, of which the first `num_right` were right.
    pub(super) fn note(&mut self, num_guesses: usize, num_right: usize) {
        (self.is_known, self.num_steps) = (true, 0);
        for place in 0..num_guesses.min(num_right + 1) {
            let rate = if place == 0 { &mut self.first } else { &mut self.next };
            rate.record(place < num_right);
        }
    }

    /// Counts a step that verified none.
    pub(super) fn pass(&mut self) {
        self.num_steps += 1;
        if self.num_steps > TYPICAL_MEMORY {
            *self = Self::default();
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// How likely the first guess of a sequence is to be right of which nothing was seen, and each later one if all
    /// before it are.
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
        // The second one of each three is wrong, so that the third one tells nothing.
        (0..60).for_each(|_| typical.note(3, 1));
        let (first, next) = typical.rates();
        assert!(first > 0.95 && next < 0.05, "{first} {next}");
        (0..TYPICAL_MEMORY).for_each(|_| typical.pass());
        assert_eq!((typical.rates(), typical.is_known()), ((first, next), true));
        typical.pass();
        assert_eq!((typical.rates(), typical.is_known()), ((0.8, 0.8), false));
    }
}
