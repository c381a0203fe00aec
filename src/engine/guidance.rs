//! The constraints on a sequence's text: reasoning of a bounded length first, then structured output.

use std::time::Instant;

use crate::Result;
use crate::config::{BeginToken, SamplingParams};
use crate::grammar::Guide;
use crate::selection::TokenMask;

/// The position of one sequence within its reasoning and its structured output.
#[derive(Debug)]
pub(super) struct Guidance {
    /// The reasoning, until it has ended.
    reasoning: Option<Reasoning>,
    /// The token after which the structured output begins, until that token has come.
    begin: Option<BeginToken>,
    guide: Option<Guide>,
}

/// Reasoning that ends with a token, either by itself or because its budget is used up.
#[derive(Debug, Clone, Copy)]
struct Reasoning {
    end: u32,
    tokens_left: usize,
}

impl Guidance {
    /// Returns `None` for a text without constraints.
    pub(super) fn new(params: &SamplingParams, guide: Option<Guide>) -> Option<Self> {
        let reasoning = params.thinking_end_token_id.zip(params.thinking_token_budget);
        let reasoning = reasoning.map(|(end, tokens_left)| Reasoning { end, tokens_left });
        let begin = params.structured_outputs.as_ref().and_then(|outputs| outputs.begin);
        (reasoning.is_some() || guide.is_some()).then_some(Self { reasoning, begin, guide })
    }

    /// Copies the constraints for another text. Must be called before the first token.
    #[must_use]
    pub(super) fn sibling(&self) -> Self {
        Self { reasoning: self.reasoning, begin: self.begin, guide: self.guide.as_ref().map(Guide::sibling) }
    }

    /// Returns the next tokens as far as only one continuation is possible.
    pub(super) fn forced(&self) -> &[u32] {
        match (&self.reasoning, &self.guide) {
            (Some(reasoning), _) if reasoning.tokens_left == 0 => std::slice::from_ref(&reasoning.end),
            (_, Some(guide)) if self.guide_holds() => guide.forced(),
            _ => &[],
        }
    }

    /// Returns how many tokens after these next ones are surely unconstrained: none after structured output begins.
    pub(super) fn num_free_behind(&self, tokens: &[u32]) -> usize {
        let constrained = self.guide.is_some() && self.begin.is_none_or(|begin| tokens.contains(&begin.id));
        let left = self.reasoning.map_or(usize::MAX, |reasoning| reasoning.tokens_left.saturating_sub(tokens.len()));
        if constrained { 0 } else { left }
    }

    /// Returns the token after which the structured output begins, until that token has come.
    pub(super) fn begin_token(&self) -> Option<u32> {
        self.begin.map(|begin| begin.id)
    }

    fn guide_holds(&self) -> bool {
        self.begin.is_none() && self.guide.is_some()
    }

    /// Starts computing the next mask, if that takes time.
    pub(super) fn prepare(&mut self) {
        if self.guide_holds() && self.forced().is_empty() {
            self.guide.iter_mut().for_each(Guide::prepare);
        }
    }

    /// True if the next mask is being computed.
    pub(super) fn is_awaited(&self) -> bool {
        self.guide.as_ref().is_some_and(Guide::is_awaited)
    }

    /// Takes the computed mask; false if it is not ready by the deadline.
    pub(super) fn settle_by(&mut self, deadline: Instant) -> bool {
        self.guide.as_mut().is_none_or(|guide| guide.settle_by(deadline))
    }

    /// True if the next token can be taken without waiting for other texts of the grammar. Waits until the deadline.
    pub(super) fn take_turn_by(&mut self, deadline: Instant) -> bool {
        !self.guide_holds() || self.guide.as_mut().is_none_or(|guide| guide.take_turn_by(deadline))
    }

    /// Lets other texts of the grammar use the lexer.
    pub(super) fn pass_turn(&mut self) {
        self.guide.iter_mut().for_each(Guide::pass_turn);
    }

    /// Returns the rule for the token that comes `ahead` tokens after the next one. The tokens in between are forced.
    pub(super) fn rule(&self, ahead: usize) -> Result<Rule<'_>> {
        if let Some(&token) = self.forced().get(ahead) {
            return Ok(Rule::Forced(token));
        }
        match &self.guide {
            Some(guide) if self.begin.is_none() && guide.is_awaited() => Ok(Rule::Awaited),
            Some(guide) if self.begin.is_none() => Ok(Rule::Masked(guide.mask()?)),
            _ => Ok(Rule::Free),
        }
    }

    /// Takes the next token of the text.
    pub(super) fn accept(&mut self, token: u32) -> Result<Accepted> {
        let holds = self.guide_holds();
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.tokens_left = reasoning.tokens_left.saturating_sub(1);
            if token == reasoning.end {
                self.reasoning = None;
            }
        }
        if self.begin.is_some_and(|begin| begin.id == token) {
            self.begin = None;
            // Structured output ends the reasoning.
            self.reasoning = None;
            return Ok(Accepted::OutputBegins);
        }
        let complete = match &mut self.guide {
            Some(guide) if holds => guide.accept(token)?,
            _ => false,
        };
        Ok(if complete { Accepted::Complete } else { Accepted::GoesOn })
    }
}

/// The tokens that are allowed at one position of the text.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule<'a> {
    /// Every token is allowed.
    Free,
    Forced(u32),
    /// The mask is still being computed.
    Awaited,
    Masked(&'a TokenMask),
}

/// The effect of a token on the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    GoesOn,
    /// Structured output begins with the next token.
    OutputBegins,
    /// Nothing can follow.
    Complete,
}
