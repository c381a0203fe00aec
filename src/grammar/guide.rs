//! The position of a sequence's text within its grammar.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use llguidance::TokenParser;

use super::ahead::{Problem, advance};
use super::compiled::{Compiled, Turn};
use super::pool::{Lanes, Pending};
use crate::selection::TokenMask;
use crate::{Error, Result};

/// Tracks one sequence within a grammar: which tokens are forced or allowed next, and whether the text is complete.
pub struct Guide {
    grammar: Arc<Compiled>,
    lanes: Lanes,
    /// True if end tokens are allowed wherever the grammar may end; otherwise only where it allows nothing else.
    may_end: bool,
    /// Tokens that the grammar forces. The first `taken` of them are already in the text.
    forced: Vec<u32>,
    taken: usize,
    /// The parser's state after the forced tokens.
    place: Place,
    /// The turn with the lexer in which the next token is taken.
    turn: Option<Turn>,
}

/// The state after the forced tokens.
enum Place {
    /// The next tokens were not requested yet.
    Here(Box<TokenParser>),
    /// A thread of the pool computes the next tokens.
    Away(Pending),
    Masked(Box<TokenParser>, TokenMask),
    Failed(Problem),
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").field("may_end", &self.may_end).finish_non_exhaustive()
    }
}

impl Guide {
    pub(super) fn new(grammar: Arc<Compiled>, lanes: Lanes, may_end: bool) -> Self {
        let place = Place::Masked(Box::new(grammar.start()), masked(&grammar, grammar.first.mask.clone(), may_end));
        let forced = grammar.first.forced.clone();
        Self { grammar, lanes, may_end, forced, taken: 0, place, turn: None }
    }

    /// Returns a guide of the same grammar, at the start of another text.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::new(Arc::clone(&self.grammar), self.lanes.clone(), self.may_end)
    }

    /// Starts computing the next tokens in the background.
    pub fn prepare(&mut self) {
        if !matches!(self.place, Place::Here(_)) {
            return;
        }
        let unknown = Place::Failed("it has failed before".into());
        if let Place::Here(parser) = mem::replace(&mut self.place, unknown) {
            let asked = self.lanes.look_ahead(&self.grammar, parser);
            self.place = asked.map_or_else(Place::Here, Place::Away);
        }
    }

    /// Returns the tokens that the grammar is known to force next.
    pub fn forced(&self) -> &[u32] {
        &self.forced[self.taken..]
    }

    /// True if the next tokens are being computed.
    pub fn is_awaited(&self) -> bool {
        matches!(self.place, Place::Away(_))
    }

    /// Returns the tokens that may follow the forced ones. Valid once `settle_by` has returned true.
    ///
    /// # Errors
    /// `GrammarFailed` with the reason, usually that the text exceeded the grammar's limits.
    pub fn mask(&self) -> Result<&TokenMask> {
        match &self.place {
            Place::Masked(_, mask) => Ok(mask),
            Place::Failed(problem) => Err(failed(problem)),
            Place::Here(_) | Place::Away(_) => Err(failed("its mask was not computed")),
        }
    }

    /// Takes the computed result; `false` if it is not ready by the deadline. There is no waiting for a grammar whose
    /// last computation ahead took long.
    pub fn settle_by(&mut self, deadline: Instant) -> bool {
        let deadline = self.patience(deadline);
        let Place::Away(pending) = &mut self.place else { return true };
        let Some(answer) = pending.answer_by(deadline) else { return false };
        match answer.and_then(|answer| Ok((answer.parser, answer.ahead?))) {
            Ok((parser, ahead)) => {
                (self.forced, self.taken) = (ahead.forced, 0);
                self.place = Place::Masked(parser, masked(&self.grammar, ahead.mask, self.may_end));
            }
            Err(problem) => self.fail(&problem),
        }
        true
    }

    fn patience(&self, deadline: Instant) -> Instant {
        if self.grammar.slow.load(Ordering::Relaxed) { Instant::now() } else { deadline }
    }

    /// True if the next token can be taken without waiting. Waits until the deadline for another text's computation
    /// ahead to release the grammar's lexer. No other starts before the token is taken or `pass_turn` is called.
    pub fn take_turn_by(&mut self, deadline: Instant) -> bool {
        if self.turn.is_none() {
            self.turn = Turn::take_by(&self.grammar, self.patience(deadline));
        }
        self.turn.is_some()
    }

    /// Lets computations ahead for other texts continue.
    pub fn pass_turn(&mut self) {
        self.turn = None;
    }

    /// Takes the next token of the text; `true` if nothing can follow it.
    ///
    /// # Errors
    /// `GrammarFailed`, as for `mask`, and for a token that was not allowed.
    pub fn accept(&mut self, token: u32) -> Result<bool> {
        if let Some(&forced) = self.forced().first() {
            if token != forced {
                self.fail(&format!("got token {token} instead of token {forced}"));
                return Err(failed("got a token that was not allowed"));
            }
            self.taken += 1;
            return Ok(self.forced().is_empty() && self.is_complete());
        }
        let _turn = self.turn.take().unwrap_or_else(|| Turn::take(&self.grammar));
        let unknown = Place::Failed("it has failed before".into());
        match mem::replace(&mut self.place, unknown) {
            Place::Here(mut parser) | Place::Masked(mut parser, _) => match advance(&mut parser, token) {
                Ok(complete) => {
                    self.place = Place::Here(parser);
                    Ok(complete)
                }
                Err(problem) => {
                    self.fail(&problem);
                    Err(failed(&problem))
                }
            },
            Place::Failed(problem) => {
                let error = failed(&problem);
                self.place = Place::Failed(problem);
                Err(error)
            }
            Place::Away(_) => Err(failed("its mask was not computed")),
        }
    }

    /// True if nothing can follow the forced tokens.
    fn is_complete(&self) -> bool {
        matches!(&self.place, Place::Masked(parser, _) if parser.stopped())
    }

    fn fail(&mut self, problem: &str) {
        // Copies share their lexer's states, so a lexer that ran out of them is useless to others, too.
        self.grammar.broken.store(true, Ordering::Relaxed);
        self.forced.clear();
        self.taken = 0;
        self.place = Place::Failed(problem.to_owned());
    }
}

fn masked(grammar: &Compiled, mut mask: TokenMask, may_end: bool) -> TokenMask {
    if !may_end {
        mask.remove_unless_alone(&grammar.end_tokens);
    }
    mask
}

fn failed(problem: &str) -> Error {
    Error::GrammarFailed { problem: problem.to_owned() }
}
