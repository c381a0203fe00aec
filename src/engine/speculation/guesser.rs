//! The guesses of one sequence, and how often they were right.
//!
//! Every guess from the text is compared with what comes, whether a step computed it as a draft or not: so it is known
//! what drafts would gain while none are made, and a sequence that begins to repeat itself is noticed soon. Guesses
//! come in runs: the first one after a wrong one is right far less often than those behind guesses that were right.
//!
//! Guesses of the model's own block, or of a draft model, are made for a step that verifies them, and for nothing else.
//! How often they are right is known from these alone, and forgotten when none were made for a while, so that some are
//! tried again.

use std::sync::Arc;

use super::acceptance::{Acceptance, MEMORY, PRIOR_RATE};
use super::lookup::Lookup;
use crate::batch::TO_GUESS;
use crate::config::{SpeculativeConfig, SpeculativeMethod};

/// A sequence's tokens and the guesses of the next ones.
#[derive(Debug)]
pub(in crate::engine) struct Guesser {
    source: Source,
    num_tokens: usize,
    guesses: Vec<u32>,
    /// Whether the guesses follow a match of the longest run that is looked for; those that are computed always count
    /// as such.
    is_whole: bool,
    /// Whether the last token was guessed.
    in_run: bool,
    /// First guesses of a run, by whether the match is whole.
    whole: Acceptance,
    partial: Acceptance,
    /// Guesses behind others that were right.
    run: Acceptance,
}

/// Where guesses come from.
#[derive(Debug)]
enum Source {
    Text {
        lookup: Lookup,
        longest: usize,
    },
    /// The model's block, or a draft model, guesses once a step is to verify it.
    Model {
        /// Tokens that came without a guess since the last one.
        num_without: usize,
        /// Whether any guesses were verified since it was forgotten how often they are right.
        is_measured: bool,
    },
}

/// Guesses of the next tokens of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine) struct Guesses {
    /// The guesses, or `TO_GUESS` for each that is made only if a step verifies it.
    pub tokens: Vec<u32>,
    /// How likely the first one is to be right, and each later one if all before it are.
    pub first: f64,
    pub next: f64,
    /// Whether that is what was seen of this sequence.
    pub is_measured: bool,
    /// Tokens of the sequence that a draft model has yet to compute before it can guess.
    pub missing: usize,
}

impl Guesser {
    pub(super) fn new(config: &SpeculativeConfig, prompt: Arc<[u32]>) -> Self {
        let source = match config.method {
            SpeculativeMethod::Ngram => {
                Source::Text { lookup: Lookup::new(config, prompt), longest: config.prompt_lookup_max }
            }
            SpeculativeMethod::Mtp | SpeculativeMethod::DraftModel => {
                Source::Model { num_without: 0, is_measured: false }
            }
        };
        Self {
            is_whole: matches!(source, Source::Model { .. }),
            source,
            num_tokens: config.num_speculative_tokens,
            guesses: Vec::new(),
            in_run: false,
            whole: Acceptance::new(PRIOR_RATE),
            partial: Acceptance::new(0.5),
            run: Acceptance::new(PRIOR_RATE),
        }
    }

    /// Takes the next tokens of the sequence, and guesses those that follow.
    pub(in crate::engine) fn push(&mut self, tokens: &[u32]) {
        for (place, &token) in tokens.iter().enumerate() {
            if let Source::Text { lookup, .. } = &mut self.source {
                lookup.push(token);
            }
            // Behind a wrong guess the others are about another text.
            if let Some(&guess) = self.guesses.get(place).filter(|_| place == 0 || self.in_run) {
                let is_right = guess == token;
                self.first_mut().record(is_right);
                self.in_run = is_right;
            }
        }
        match &mut self.source {
            Source::Text { lookup, longest } => {
                self.is_whole = lookup.find(self.num_tokens, &mut self.guesses) == *longest;
                self.in_run &= !self.guesses.is_empty();
            }
            Source::Model { num_without, is_measured } => {
                *num_without = if self.guesses.is_empty() { *num_without + tokens.len() } else { 0 };
                *is_measured |= !self.guesses.is_empty();
                if *num_without >= MEMORY {
                    (self.whole, self.run) = (Acceptance::new(PRIOR_RATE), Acceptance::new(PRIOR_RATE));
                    (*num_without, *is_measured) = (0, false);
                }
                self.guesses.clear();
                self.in_run = false;
            }
        }
    }

    /// Takes what was computed as guesses of the tokens that come next.
    pub(in crate::engine) fn guessed(&mut self, tokens: &[u32]) {
        self.guesses.clear();
        self.guesses.extend_from_slice(tokens);
    }

    fn first_mut(&mut self) -> &mut Acceptance {
        match (self.in_run, self.is_whole) {
            (true, _) => &mut self.run,
            (false, true) => &mut self.whole,
            (false, false) => &mut self.partial,
        }
    }

    /// The guesses of the next tokens, up to the first that may not be one, and no more than `most`; `None` for none.
    pub(in crate::engine) fn guesses(&mut self, most: usize, may_be: impl Fn(u32) -> bool) -> Option<Guesses> {
        let tokens: Vec<u32> = match self.source {
            Source::Text { .. } => self.guesses.iter().copied().take(most).take_while(|&token| may_be(token)).collect(),
            Source::Model { .. } => vec![TO_GUESS; most.min(self.num_tokens)],
        };
        let (first, next) = (self.first_mut().rate(), self.run.rate());
        let is_measured = !matches!(self.source, Source::Model { is_measured: false, .. });
        (!tokens.is_empty()).then_some(Guesses { tokens, first, next, is_measured, missing: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesser(prompt: &[u32]) -> Guesser {
        let config = SpeculativeConfig { num_speculative_tokens: 4, prompt_lookup_max: 4, ..Default::default() };
        Guesser::new(&config, prompt.into())
    }

    /// The guesses, and the chances of the first and of later ones in percent.
    fn guesses(guesser: &mut Guesser) -> (Vec<u32>, u32, u32) {
        let percent = |rate: f64| (100.0 * rate).round() as u32;
        let guesses = guesser.guesses(9, |_| true);
        guesses.map_or((vec![], 0, 0), |guesses| (guesses.tokens, percent(guesses.first), percent(guesses.next)))
    }

    #[test]
    fn guesses_that_nobody_computed_are_judged_as_well() {
        let prompt: Vec<u32> = (0..20).chain(0..4).collect();
        let mut guesser = guesser(&prompt);
        guesser.push(&[4]);
        assert_eq!(guesses(&mut guesser), (vec![5, 6, 7, 8], 80, 80), "the prior rates of a whole match");
        guesser.push(&[5, 6, 7]);
        // One was the first of its run, two followed; the one after the tokens that came is neither right nor wrong.
        let (tokens, first, next) = guesses(&mut guesser);
        assert_eq!(tokens, [8, 9, 10, 11]);
        assert!(first == next && next > 85, "{first} {next}");
        (8..12).for_each(|token| guesser.push(&[token]));
        let (_, first, next) = guesses(&mut guesser);
        assert!(first == next && next > 90, "{first} {next}");
        guesser.push(&[99]);
        assert_eq!(guesses(&mut guesser), (vec![], 0, 0));
        // The next match begins a run, and is one of fewer tokens.
        guesser.push(&[1, 2, 3]);
        let (tokens, first, next) = guesses(&mut guesser);
        assert_eq!((tokens, first), (vec![4, 5, 6, 7], 50));
        assert!(next < 90, "a guess of the run was wrong: {next}");
        guesser.push(&[77]);
        guesser.push(&[1, 2, 3]);
        assert!(guesses(&mut guesser).1 < 35, "so was the first of a run");
    }

    #[test]
    fn guesses_end_where_they_may() {
        let prompt: Vec<u32> = (0..20).chain(0..5).collect();
        let mut guesser = guesser(&prompt);
        guesser.push(&[5]);
        let tokens = |guesses: Option<Guesses>| guesses.map(|guesses| guesses.tokens);
        assert_eq!(tokens(guesser.guesses(2, |_| true)), Some(vec![6, 7]));
        assert_eq!(tokens(guesser.guesses(9, |token| token != 9)), Some(vec![6, 7, 8]));
        assert_eq!(guesser.guesses(9, |token| token != 6), None);
        assert_eq!(guesser.guesses(0, |_| true), None);
    }

    /// A block's guesses are judged by what comes, those behind a wrong one not at all, and an old rate is forgotten.
    #[test]
    fn guesses_of_a_block_are_made_for_a_step() {
        let config =
            SpeculativeConfig { method: SpeculativeMethod::Mtp, num_speculative_tokens: 3, ..Default::default() };
        let mut guesser = Guesser::new(&config, [1, 2, 3].into());
        guesser.push(&[4]);
        assert_eq!(guesses(&mut guesser), (vec![TO_GUESS; 3], 80, 80));
        assert_eq!(guesser.guesses(2, |_| false).map(|guesses| guesses.tokens), Some(vec![TO_GUESS; 2]));
        assert_eq!(guesser.guesses(0, |_| true), None);
        // The first one was right, the second wrong, and the third is none of this text.
        guesser.guessed(&[5, 6, 7]);
        guesser.push(&[5, 9]);
        let (_, first, next) = guesses(&mut guesser);
        assert!(first > 80 && next < 60, "{first} {next}");
        // Tokens that nobody guessed tell nothing.
        guesser.push(&[10]);
        assert_eq!(guesses(&mut guesser), (vec![TO_GUESS; 3], first, next));
        (0..40).for_each(|_| {
            guesser.guessed(&[8]);
            guesser.push(&[9]);
        });
        assert!(guesses(&mut guesser).1 < 10);
        (1..MEMORY).for_each(|_| guesser.push(&[9]));
        assert!(guesses(&mut guesser).1 < 10);
        guesser.push(&[9]);
        assert_eq!(guesses(&mut guesser), (vec![TO_GUESS; 3], 80, 80));
    }
}
