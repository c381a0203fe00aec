//! Structured output: computes the tokens that a grammar allows next, with the library llguidance.
//!
//! `Grammars` belongs to an engine. It compiles grammars for the model's vocabulary, on a separate thread and within
//! limits, and caches them. A `Guide` belongs to a sequence and tracks its position in the grammar. Threads of the pool
//! compute the allowed tokens while the device computes their logits. A grammar is rejected with its request if it
//! allows no text, or if its first token takes too much work.
//!
//! Start with `guide`, then `compiled`; `source`, `gbnf` and `schema` turn each kind of request into the library's
//! format. Of the workspace, this crate knows the tokenizer, and the request's settings and masks of `rocmforge_core`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod ahead;
mod cache;
mod compiled;
mod forced;
mod gbnf;
mod guide;
mod keywords;
mod lark;
mod pool;
mod schema;
mod source;
#[cfg(test)]
mod tests;
mod unsupported;
mod vocabulary;

// The crates below, by the names that the files of this one use.
use rocmforge_core::{Error, Result, config, error, selection};
#[cfg(test)]
use rocmforge_gguf as gguf;
#[cfg(test)]
use rocmforge_testdata as testdata;
use rocmforge_tokenizer as tokenizer;

use std::sync::Arc;
use std::thread;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use parking_lot::Mutex;

pub use guide::Guide;
pub use source::in_lark;

use self::cache::Cache;
use self::compiled::{Compiled, Memory};
use self::pool::Pool;
use crate::config::StructuredOutputs;
use crate::tokenizer::Tokenizer;

/// The stack for a compilation, since the library descends into schemas and rules recursively.
const STACK_BYTES: usize = 256 << 20;

/// Returns the cost limits of a grammar. A mask that reaches the limits of a step takes some 20 ms.
fn limits() -> ParserLimits {
    ParserLimits {
        // A state takes 1 to 2 kB, and states are added while texts are generated.
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Compiles grammars for one model.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    /// The vocabulary in the library's format. It is created with the first grammar, since few engines need one.
    factory: Mutex<Option<Arc<ParserFactory>>>,
    cache: Arc<Mutex<Cache>>,
    memory: Arc<Memory>,
    pool: Pool,
}

impl Grammars {
    /// `vocab_size` is the number of the model's logits, which may exceed the tokenizer's tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        let (factory, cache, memory, pool) = Default::default();
        Self { tokenizer, vocab_size, factory, cache, memory, pool }
    }

    /// Returns the guide of a sequence's text, at its start. Without `may_end`, end tokens are only allowed where
    /// nothing else is.
    ///
    /// # Errors
    /// `InvalidRequest` with the library's message for a grammar that is invalid, that no text fits, or that is too
    /// large.
    pub fn guide(&self, outputs: &StructuredOutputs, may_end: bool) -> Result<Guide> {
        let compiled = self.compiled(outputs)?;
        Ok(Guide::new(compiled, self.pool.lanes(&self.cache)?, may_end))
    }

    /// Returns the compiled grammar that all guides of these outputs share.
    ///
    /// # Errors
    /// As `guide`.
    pub fn compiled(&self, outputs: &StructuredOutputs) -> Result<Arc<Compiled>> {
        if let Some(known) = self.cache.lock().get(outputs) {
            return Ok(known);
        }
        // Two callers with the same new grammar both compile it, so that no caller waits under the lock.
        let factory = self.factory()?;
        let build = || {
            let source = source::grammar(outputs)?;
            let start = factory.create_parser(source).map_err(|error| source::refused(outputs, &error))?;
            let end_tokens = self.tokenizer.eos_token_ids().into();
            let compiled = Compiled::new(start, outputs.num_bytes(), end_tokens, &self.memory);
            compiled.map_err(|problem| source::refused(outputs, &problem))
        };
        let compiled = thread::scope(|scope| {
            let builder = thread::Builder::new().name("rocmforge-grammar".into()).stack_size(STACK_BYTES);
            let running = builder.spawn_scoped(scope, build).map_err(no_thread)?;
            running.join().map_err(|_| Error::internal("a panic in the compilation of a grammar"))
        })??;
        let compiled = Arc::new(compiled);
        self.cache.lock().insert(outputs.clone(), Arc::clone(&compiled));
        Ok(compiled)
    }

    fn factory(&self) -> Result<Arc<ParserFactory>> {
        let mut factory = self.factory.lock();
        if let Some(factory) = &*factory {
            return Ok(Arc::clone(factory));
        }
        let vocabulary = vocabulary::of(&self.tokenizer, self.vocab_size)?;
        let mut made = ParserFactory::new_simple(&vocabulary).map_err(Error::internal)?;
        made.quiet();
        *made.limits_mut() = limits();
        let made = Arc::new(made);
        *factory = Some(Arc::clone(&made));
        Ok(made)
    }
}

fn no_thread(error: std::io::Error) -> Error {
    Error::internal(format!("the system gives no thread for a grammar: {error}"))
}
