//! The draft tokens of one sequence and their acceptance rates.
//!
//! Every draft token from the text is compared with the next token, even if no step verified it. So the gain of drafts
//! is known while none are used, and a sequence that starts to repeat itself is noticed soon. Drafts come in runs: the
//! first draft after a wrong one is right far less often than drafts after right ones.
//!
//! Drafts of the model's own block or of a draft model are computed only for a step that verifies them. Their
//! acceptance rate is known from those steps alone. It is forgotten when none were made for a while, so that some are
//! tried again.

use std::sync::Arc;

use super::acceptance::{Acceptance, MEMORY, PRIOR_RATE};
use super::lookup::Lookup;
use crate::batch::TO_DRAFT;
use crate::config::{SpeculativeConfig, SpeculativeMethod};

/// A sequence's tokens and the draft tokens that may follow.
#[derive(Debug)]
pub(crate) struct Proposer {
    source: Source,
    num_tokens: usize,
    proposed: Vec<u32>,
    /// True if the draft tokens follow a match of the longest length that is searched for. It stays true for draft
    /// tokens that a model computes.
    is_whole: bool,
    /// True if the last token was a correct draft token.
    in_run: bool,
    /// Rates of the first draft of a run, for matches of the full length and for shorter ones.
    whole: Acceptance,
    partial: Acceptance,
    /// The rate of drafts after right ones.
    run: Acceptance,
}

/// The source of draft tokens.
#[derive(Debug)]
enum Source {
    Text {
        lookup: Lookup,
        longest: usize,
    },
    /// The model's block or a draft model computes draft tokens once a step is to verify them.
    Model {
        /// Tokens without a draft since the last draft.
        num_without: usize,
        /// True if any drafts were verified since the rate was last reset.
        is_measured: bool,
    },
}

/// The proposed draft tokens of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Proposal {
    /// The draft tokens. `TO_DRAFT` stands for a token that is only computed if a step verifies it.
    pub tokens: Vec<u32>,
    /// The probability that the first is right, and that each later one is if all before it are.
    pub first: f64,
    pub next: f64,
    /// True if these rates were observed in this sequence.
    pub is_measured: bool,
    /// Tokens of the sequence that a draft model has to compute before it can draft.
    pub missing: usize,
}

impl Proposer {
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
            proposed: Vec::new(),
            in_run: false,
            whole: Acceptance::new(PRIOR_RATE),
            partial: Acceptance::new(0.5),
            run: Acceptance::new(PRIOR_RATE),
        }
    }

    /// Takes the next tokens of the sequence and proposes draft tokens to follow them.
    pub(crate) fn push(&mut self, tokens: &[u32]) {
        for (place, &token) in tokens.iter().enumerate() {
            if let Source::Text { lookup, .. } = &mut self.source {
                lookup.push(token);
            }
            // After a wrong draft token the others belong to another text.
            if let Some(&draft) = self.proposed.get(place).filter(|_| place == 0 || self.in_run) {
                let is_right = draft == token;
                self.first_mut().record(is_right);
                self.in_run = is_right;
            }
        }
        match &mut self.source {
            Source::Text { lookup, longest } => {
                self.is_whole = lookup.find(self.num_tokens, &mut self.proposed) == *longest;
                self.in_run &= !self.proposed.is_empty();
            }
            Source::Model { num_without, is_measured } => {
                *num_without = if self.proposed.is_empty() { *num_without + tokens.len() } else { 0 };
                *is_measured |= !self.proposed.is_empty();
                if *num_without >= MEMORY {
                    (self.whole, self.run) = (Acceptance::new(PRIOR_RATE), Acceptance::new(PRIOR_RATE));
                    (*num_without, *is_measured) = (0, false);
                }
                self.proposed.clear();
                self.in_run = false;
            }
        }
    }

    /// Takes draft tokens that the model computed.
    pub(crate) fn drafted(&mut self, tokens: &[u32]) {
        self.proposed.clear();
        self.proposed.extend_from_slice(tokens);
    }

    fn first_mut(&mut self) -> &mut Acceptance {
        match (self.in_run, self.is_whole) {
            (true, _) => &mut self.run,
            (false, true) => &mut self.whole,
            (false, false) => &mut self.partial,
        }
    }

    /// Returns at most `most` draft tokens, up to the first for which `may_be` is false; `None` if there are none.
    pub(crate) fn proposed(&mut self, most: usize, may_be: impl Fn(u32) -> bool) -> Option<Proposal> {
        let tokens: Vec<u32> = match self.source {
            Source::Text { .. } => {
                self.proposed.iter().copied().take(most).take_while(|&token| may_be(token)).collect()
            }
            Source::Model { .. } => vec![TO_DRAFT; most.min(self.num_tokens)],
        };
        let (first, next) = (self.first_mut().rate(), self.run.rate());
        let is_measured = !matches!(self.source, Source::Model { is_measured: false, .. });
        (!tokens.is_empty()).then_some(Proposal { tokens, first, next, is_measured, missing: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposer(prompt: &[u32]) -> Proposer {
        let config = SpeculativeConfig { num_speculative_tokens: 4, prompt_lookup_max: 4, ..Default::default() };
        Proposer::new(&config, prompt.into())
    }

    /// Returns the draft tokens, and the rates of the first and of later ones in percent.
    fn proposed(proposer: &mut Proposer) -> (Vec<u32>, u32, u32) {
        let percent = |rate: f64| (100.0 * rate).round() as u32;
        let proposed = proposer.proposed(9, |_| true);
        proposed.map_or((vec![], 0, 0), |proposed| (proposed.tokens, percent(proposed.first), percent(proposed.next)))
    }

    #[test]
    fn drafts_that_nobody_computed_are_judged_as_well() {
        let prompt: Vec<u32> = (0..20).chain(0..4).collect();
        let mut proposer = proposer(&prompt);
        proposer.push(&[4]);
        assert_eq!(proposed(&mut proposer), (vec![5, 6, 7, 8], 80, 80), "the prior rates of a whole match");
        proposer.push(&[5, 6, 7]);
        // One was the first of its run and two followed. The draft after the pushed tokens is not judged yet.
        let (tokens, first, next) = proposed(&mut proposer);
        assert_eq!(tokens, [8, 9, 10, 11]);
        assert!(first == next && next > 85, "{first} {next}");
        (8..12).for_each(|token| proposer.push(&[token]));
        let (_, first, next) = proposed(&mut proposer);
        assert!(first == next && next > 90, "{first} {next}");
        proposer.push(&[99]);
        assert_eq!(proposed(&mut proposer), (vec![], 0, 0));
        // The next match starts a run and has fewer tokens.
        proposer.push(&[1, 2, 3]);
        let (tokens, first, next) = proposed(&mut proposer);
        assert_eq!((tokens, first), (vec![4, 5, 6, 7], 50));
        assert!(next < 90, "a draft token of the run was wrong: {next}");
        proposer.push(&[77]);
        proposer.push(&[1, 2, 3]);
        assert!(proposed(&mut proposer).1 < 35, "so was the first of a run");
    }

    #[test]
    fn drafts_end_where_they_may() {
        let prompt: Vec<u32> = (0..20).chain(0..5).collect();
        let mut proposer = proposer(&prompt);
        proposer.push(&[5]);
        let tokens = |proposed: Option<Proposal>| proposed.map(|proposed| proposed.tokens);
        assert_eq!(tokens(proposer.proposed(2, |_| true)), Some(vec![6, 7]));
        assert_eq!(tokens(proposer.proposed(9, |token| token != 9)), Some(vec![6, 7, 8]));
        assert_eq!(proposer.proposed(9, |token| token != 6), None);
        assert_eq!(proposer.proposed(0, |_| true), None);
    }

    /// Model-made draft tokens are judged by the next tokens. Those after a wrong one are not judged, and an old rate
    /// is forgotten.
    #[test]
    fn drafts_of_a_block_are_made_for_a_step() {
        let config =
            SpeculativeConfig { method: SpeculativeMethod::Mtp, num_speculative_tokens: 3, ..Default::default() };
        let mut proposer = Proposer::new(&config, [1, 2, 3].into());
        proposer.push(&[4]);
        assert_eq!(proposed(&mut proposer), (vec![TO_DRAFT; 3], 80, 80));
        assert_eq!(proposer.proposed(2, |_| false).map(|proposed| proposed.tokens), Some(vec![TO_DRAFT; 2]));
        assert_eq!(proposer.proposed(0, |_| true), None);
        // The first was right, the second wrong, and the third does not belong to this text.
        proposer.drafted(&[5, 6, 7]);
        proposer.push(&[5, 9]);
        let (_, first, next) = proposed(&mut proposer);
        assert!(first > 80 && next < 60, "{first} {next}");
        // Tokens without a draft change no rate.
        proposer.push(&[10]);
        assert_eq!(proposed(&mut proposer), (vec![TO_DRAFT; 3], first, next));
        (0..40).for_each(|_| {
            proposer.drafted(&[8]);
            proposer.push(&[9]);
        });
        assert!(proposed(&mut proposer).1 < 10);
        (1..MEMORY).for_each(|_| proposer.push(&[9]));
        assert!(proposed(&mut proposer).1 < 10);
        proposer.push(&[9]);
        assert_eq!(proposed(&mut proposer), (vec![TO_DRAFT; 3], 80, 80));
    }
}
