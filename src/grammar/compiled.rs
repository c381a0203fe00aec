//! A grammar compiled for one vocabulary, shared by all texts that use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use llguidance::TokenParser;
use parking_lot::{Condvar, Mutex};

use super::ahead::{Ahead, Problem, look_ahead};

/// Maximum bytes of one grammar. The lexer's states grow while texts are generated, at 1 to 2 kB each.
const MAX_BYTES: usize = 96 << 20;
/// Maximum bytes of all grammars held by the cache or by a text.
const MAX_BYTES_OF_ALL: usize = 512 << 20;
/// Bytes of rules and lexemes per byte of source, measured on grammars with thousands of rules.
const BYTES_PER_SOURCE_BYTE: usize = 64;

pub struct Compiled {
    /// The parser's state after the tokens that are forced at the start.
    start: TokenParser,
    /// The forced tokens at the start of every text, and the mask after them.
    pub(super) first: Ahead,
    /// The end tokens, sorted.
    pub(super) end_tokens: Arc<[u32]>,
    /// True if a text broke its lexer.
    pub(super) broken: AtomicBool,
    /// True if the last computation ahead took long.
    pub slow: AtomicBool,
    /// Controls the use of the lexer.
    pub turns: Turns,
    source_bytes: usize,
    bytes: AtomicUsize,
    memory: Arc<Memory>,
}

impl Compiled {
    /// Computes the start of all texts.
    ///
    /// # Errors
    /// No text fits, or the grammar is too large.
    pub(super) fn new(
        mut start: TokenParser,
        source_bytes: usize,
        end_tokens: Arc<[u32]>,
        memory: &Arc<Memory>,
    ) -> Result<Self, Problem> {
        start.start_without_prompt();
        let first = look_ahead(&mut start)?;
        let compiled = Self {
            start,
            first,
            end_tokens,
            broken: AtomicBool::new(false),
            slow: AtomicBool::new(false),
            turns: Turns::default(),
            source_bytes,
            bytes: AtomicUsize::new(0),
            memory: Arc::clone(memory),
        };
        compiled.measure();
        Ok(compiled)
    }

    /// Returns a parser for another text, after the tokens that are forced at the start.
    pub(super) fn start(&self) -> TokenParser {
        self.start.clone()
    }

    /// Returns a parser at the start of the text, as the library's own interface.
    #[cfg(test)]
    pub(super) fn matcher(&self) -> llguidance::Matcher {
        let mut parser = self.start();
        let begun = parser.rollback(self.first.forced.len()).map(|()| parser);
        llguidance::Matcher::new(begun)
    }

    /// Updates the memory that it takes now. Waits for the lexer.
    pub(super) fn measure(&self) {
        let states = self.start.parser.lexer_stats().num_bytes;
        let mask = size_of_val(self.first.mask.words());
        // Tables are up to a quarter larger than their contents.
        let bytes = states + states / 4 + mask + self.source_bytes * BYTES_PER_SOURCE_BYTE;
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        self.memory.0.fetch_add(bytes, Ordering::Relaxed);
        self.memory.0.fetch_sub(before, Ordering::Relaxed);
    }

    /// Returns the bytes of the last measurement.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// # Errors
    /// Fails if the grammar, or all grammars together, take too much memory.
    pub(super) fn check_memory(&self) -> Result<(), Problem> {
        let megabytes = |bytes: usize| bytes >> 20;
        if self.bytes() > MAX_BYTES {
            return Err(format!("its states take more than {} MB", megabytes(MAX_BYTES)));
        }
        if self.memory.0.load(Ordering::Relaxed) > MAX_BYTES_OF_ALL {
            let most = megabytes(MAX_BYTES_OF_ALL);
            return Err(format!("the grammars of all requests take more than {most} MB; try again later"));
        }
        Ok(())
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// Bytes of all live grammars.
#[derive(Debug, Default)]
pub(super) struct Memory(AtomicUsize);

#[cfg(test)]
impl Memory {
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Controls the use of a grammar's lexer: by texts that take a token, for microseconds, or by one computation ahead.
#[derive(Debug, Default)]
pub struct Turns {
    /// The number of texts that use it; `LOOKS_AHEAD` while a computation ahead does.
    users: Mutex<usize>,
    freed: Condvar,
}

const LOOKS_AHEAD: usize = usize::MAX;

impl Turns {
    /// Runs the work once no one else uses the lexer.
    pub fn alone<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut users = self.users.lock();
        self.freed.wait_while(&mut users, |users| *users != 0);
        *users = LOOKS_AHEAD;
        drop(users);
        let done = work();
        *self.users.lock() = 0;
        self.freed.notify_all();
        done
    }
}

/// A text's turn with the lexer, which ends when this is dropped.
pub(super) struct Turn(Arc<Compiled>);

impl Turn {
    /// Takes a turn; `None` if a computation ahead still has the lexer at the deadline.
    pub(super) fn take_by(grammar: &Arc<Compiled>, deadline: Instant) -> Option<Self> {
        let mut users = grammar.turns.users.lock();
        while *users == LOOKS_AHEAD {
            if grammar.turns.freed.wait_until(&mut users, deadline).timed_out() {
                return None;
            }
        }
        *users += 1;
        Some(Self(Arc::clone(grammar)))
    }

    /// Takes a turn, after any running computation ahead.
    pub(super) fn take(grammar: &Arc<Compiled>) -> Self {
        let mut users = grammar.turns.users.lock();
        grammar.turns.freed.wait_while(&mut users, |users| *users == LOOKS_AHEAD);
        *users += 1;
        Self(Arc::clone(grammar))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut users = self.0.turns.users.lock();
        *users -= 1;
        if *users == 0 {
            self.0.turns.freed.notify_all();
        }
    }
}
