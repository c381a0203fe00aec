//! The rules that a request gives to its text: thoughts of a bounded length first, then a form.

use crate::Result;
use crate::config::{BeginToken, SamplingParams};
use crate::grammar::Guide;
use crate::selection::TokenMask;

/// Where one sequence is in its thoughts and in its form.
#[derive(Debug)]
pub(super) struct Guidance {
    /// The thoughts, until they have ended.
    thoughts: Option<Thoughts>,
    /// The token behind which the form begins, until it has come.
    begin: Option<BeginToken>,
    form: Option<Guide>,
}

/// Thoughts that end with a token, by themselves or because there were enough of them.
#[derive(Debug, Clone, Copy)]
struct Thoughts {
    end: u32,
    tokens_left: usize,
}

impl Guidance {
    /// `None` for a text without rules.
    pub(super) fn new(params: &SamplingParams, form: Option<Guide>) -> Option<Self> {
        let thoughts = params.thinking_end_token_id.zip(params.thinking_token_budget);
        let thoughts = thoughts.map(|(end, tokens_left)| Thoughts { end, tokens_left });
        let begin = params.structured_outputs.as_ref().and_then(|form| form.begin);
        (thoughts.is_some() || form.is_some()).then_some(Self { thoughts, begin, form })
    }

    /// Copies the rules for another text. Only for one that is at its own beginning.
    #[must_use]
    pub(super) fn sibling(&self) -> Self {
        Self { thoughts: self.thoughts, begin: self.begin, form: self.form.as_ref().map(Guide::sibling) }
    }

    /// The tokens that are known to be the only ones that may come next, one after the other.
    pub(super) fn forced(&self) -> &[u32] {
        match (&self.thoughts, &self.form) {
            (Some(thoughts), _) if thoughts.tokens_left == 0 => std::slice::from_ref(&thoughts.end),
            (_, Some(form)) if self.form_holds() => form.forced(),
            _ => &[],
        }
    }

    /// How many tokens behind these, which come next, are surely free. Behind the token that begins a form none is.
    pub(super) fn num_free_behind(&self, tokens: &[u32]) -> usize {
        let forms = self.form.is_some() && self.begin.is_none_or(|begin| tokens.contains(&begin.id));
        let left = self.thoughts.map_or(usize::MAX, |thoughts| thoughts.tokens_left.saturating_sub(tokens.len()));
        if forms { 0 } else { left }
    }

    /// The token behind which the form begins, until it has come.
    pub(super) fn begin_token(&self) -> Option<u32> {
        self.begin.map(|begin| begin.id)
    }

    fn form_holds(&self) -> bool {
        self.begin.is_none() && self.form.is_some()
    }

    /// Has it computed what follows, if it takes time.
    pub(super) fn prepare(&mut self) {
        if self.form_holds() && self.forced().is_empty() {
            self.form.iter_mut().for_each(Guide::prepare);
        }
    }

    /// Whether what follows is being computed.
    pub(super) fn is_awaited(&self) -> bool {
        self.form.as_ref().is_some_and(Guide::is_awaited)
    }

    /// Waits for what is being computed.
    pub(super) fn settle(&mut self) {
        self.form.iter_mut().for_each(Guide::settle);
    }

    /// The rule for the token that comes `ahead` tokens after the next one, once nothing is being computed. Those in
    /// between are forced.
    pub(super) fn rule(&self, ahead: usize) -> Result<Rule<'_>> {
        if let Some(&token) = self.forced().get(ahead) {
            return Ok(Rule::Forced(token));
        }
        match &self.form {
            Some(form) if self.begin.is_none() => Ok(Rule::Masked(form.mask()?)),
            _ => Ok(Rule::Free),
        }
    }

    /// Takes the next token of the text.
    pub(super) fn accept(&mut self, token: u32) -> Result<Accepted> {
        let holds = self.form_holds();
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.tokens_left = thoughts.tokens_left.saturating_sub(1);
            if token == thoughts.end {
                self.thoughts = None;
            }
        }
        if self.begin.is_some_and(|begin| begin.id == token) {
            self.begin = None;
            // A form that begins is all that is left of the text.
            self.thoughts = None;
            return Ok(Accepted::FormBegins);
        }
        let complete = match &mut self.form {
            Some(form) if holds => form.accept(token)?,
            _ => false,
        };
        Ok(if complete { Accepted::Complete } else { Accepted::GoesOn })
    }
}

/// The tokens that may come at a place of the text.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule<'a> {
    /// All of them.
    Free,
    Forced(u32),
    Masked(&'a TokenMask),
}

/// The effect of a token on the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    GoesOn,
    /// The form holds from the next token on.
    FormBegins,
    /// Nothing can follow.
    Complete,
}
