//! Where in its grammar the text of a sequence is.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, bounded};
use llguidance::Matcher;

use super::pool::{Answer, Job};
use super::{Compiled, source};
use crate::selection::TokenMask;
use crate::{Error, Result};

/// The grammar's part in one sequence: which tokens come next, or may, and whether the text is complete.
pub struct Guide {
    grammar: Arc<Compiled>,
    jobs: Sender<Job>,
    /// Whether end tokens may come where the grammar allows the end; if not, only where it allows nothing else.
    may_end: bool,
    /// Tokens that the grammar forces next, of which the first `taken` are in the text already.
    forced: Vec<u32>,
    taken: usize,
    /// The place behind the forced tokens.
    place: Place,
}

/// Where the text is, once the tokens that are forced have come.
enum Place {
    /// The mask of the next token was not asked for yet.
    Here(Box<Matcher>),
    /// A thread of the pool computes it.
    Away(Receiver<Answer>),
    Masked(Box<Matcher>, TokenMask),
    Failed(String),
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").field("may_end", &self.may_end).finish_non_exhaustive()
    }
}

impl Guide {
    pub(super) fn new(grammar: Arc<Compiled>, jobs: Sender<Job>, may_end: bool) -> Self {
        let place = Place::Here(Box::new(grammar.matcher()));
        Self { grammar, jobs, may_end, forced: Vec::new(), taken: 0, place }
    }

    /// A guide of the same grammar, at the beginning of another text.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::new(Arc::clone(&self.grammar), self.jobs.clone(), self.may_end)
    }

    /// Has the mask of the next token computed, beside whatever else is done until it is needed.
    pub fn prepare(&mut self) {
        if let Place::Here(_) = self.place {
            let (answer, answers) = bounded(1);
            if let Place::Here(matcher) = mem::replace(&mut self.place, Place::Away(answers))
                && let Err(refused) = self.jobs.send(Job { matcher, answer })
            {
                self.place = Place::Here(refused.into_inner().matcher);
            }
        }
    }

    /// The tokens that the grammar is known to force next.
    pub fn forced(&self) -> &[u32] {
        &self.forced[self.taken..]
    }

    /// Whether what follows is being computed.
    pub fn is_awaited(&self) -> bool {
        matches!(self.place, Place::Away(_))
    }

    /// Returns the tokens that may come behind those that are forced, once `settle` has waited for them.
    ///
    /// # Errors
    /// `StepFailed` with the library's message, above all where the text has led the grammar out of its bounds.
    pub fn mask(&self) -> Result<&TokenMask> {
        match &self.place {
            Place::Masked(_, mask) => Ok(mask),
            Place::Failed(problem) => Err(failed(problem)),
            Place::Here(_) | Place::Away(_) => Err(failed("its mask was not computed")),
        }
    }

    /// Takes the next token of the text; `true` when nothing can follow it.
    ///
    /// # Errors
    /// `StepFailed`, as `mask`, and for a token that was not allowed.
    pub fn accept(&mut self, token: u32) -> Result<bool> {
        self.settle();
        if let Some(&forced) = self.forced().first() {
            if token != forced {
                self.fail(&format!("token {token} came in place of token {forced}"));
                return Err(failed("a token came that was not allowed"));
            }
            self.taken += 1;
            return Ok(self.forced().is_empty() && self.is_complete());
        }
        match mem::replace(&mut self.place, Place::Failed("it has failed before".into())) {
            Place::Here(mut matcher) | Place::Masked(mut matcher, _) => match matcher.consume_token(token) {
                Ok(()) => {
                    let complete = matcher.is_stopped();
                    self.place = Place::Here(matcher);
                    Ok(complete)
                }
                Err(error) => {
                    self.fail(&error.to_string());
                    Err(failed(source::message(&error.to_string())))
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

    /// Waits for what is being computed.
    pub fn settle(&mut self) {
        let Place::Away(answers) = &self.place else { return };
        match answers.recv() {
            Ok(Answer { matcher, forced, mask: Ok(mut mask) }) => {
                if !self.may_end {
                    mask.remove_unless_alone(&self.grammar.end_tokens);
                }
                (self.forced, self.taken) = (forced, 0);
                self.place = Place::Masked(matcher, mask);
            }
            Ok(Answer { mask: Err(problem), .. }) => self.fail(&problem),
            Err(_) => self.fail("the thread that computes masks has ended"),
        }
    }

    /// Whether nothing can follow the forced tokens.
    fn is_complete(&self) -> bool {
        matches!(&self.place, Place::Masked(matcher, _) if matcher.is_stopped())
    }

    fn fail(&mut self, problem: &str) {
        // Copies share their lexer's states, so that one that ran out of them is of no use to others.
        self.grammar.broken.store(true, Ordering::Relaxed);
        self.forced.clear();
        self.taken = 0;
        self.place = Place::Failed(source::message(problem).to_owned());
    }
}

impl Compiled {
    pub(super) fn matcher(&self) -> Matcher {
        Matcher::new(Ok(self.start.clone()))
    }

    /// Bytes of the lexer's states, as the library counts them.
    pub(super) fn bytes(&self) -> usize {
        self.start.parser.lexer_stats().num_bytes
    }
}

fn failed(problem: &str) -> Error {
    Error::StepFailed { problem: format!("the grammar of structured_outputs: {problem}") }
}
