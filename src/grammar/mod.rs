//! Structured output: the tokens that may come next in a text of a given form, by the library llguidance.
//!
//! `Grammars` belongs to an engine: it compiles a form for the model's vocabulary, on a thread of its own and within
//! bounds, and keeps what was compiled. A `Guide` belongs to a sequence: it knows where in its grammar the text is.
//! Which tokens may come next is computed by threads of the pool, while the device computes their logits.

mod cache;
mod gbnf;
mod guide;
mod lark;
mod pool;
mod schema;
mod source;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::sync::Arc;
use std::thread;

use llguidance::api::ParserLimits;
use llguidance::{ParserFactory, TokenParser};
use parking_lot::Mutex;

pub use guide::Guide;
pub use source::in_lark;

use self::cache::Cache;
use self::pool::Pool;
use crate::config::StructuredOutputs;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Bytes of stack for a compilation: the library descends into schemas and rules by recursion.
const STACK_BYTES: usize = 256 << 20;

/// Bounds of the cost of a grammar. A mask that reaches the bounds of a step takes some 20 ms.
fn limits() -> ParserLimits {
    ParserLimits {
        // A state takes 1 to 2 kB, and states are added as texts are generated.
        max_lexer_states: 50_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// A grammar for one vocabulary. Sequences begin with copies of it.
pub(crate) struct Compiled {
    start: TokenParser,
    /// The end tokens, sorted.
    end_tokens: Arc<[u32]>,
    broken: std::sync::atomic::AtomicBool,
}

/// Compiles forms of text for one model.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    vocab_size: usize,
    /// The vocabulary as the library wants it: made for the first grammar, since few engines see one.
    factory: Mutex<Option<Arc<ParserFactory>>>,
    cache: Mutex<Cache>,
    pool: Pool,
}

impl Grammars {
    /// `vocab_size` is the model's, whose logits may be more than the tokenizer's tokens.
    pub fn new(tokenizer: Arc<Tokenizer>, vocab_size: usize) -> Self {
        let cache = Mutex::new(Cache::default());
        Self { tokenizer, vocab_size, factory: Mutex::new(None), cache, pool: Pool::default() }
    }

    /// Returns the guide of a sequence's text, from its beginning on. With `may_end` off no end token comes while
    /// another may.
    ///
    /// # Errors
    /// `InvalidRequest` with the library's message for a form that is wrong, or too large.
    pub fn guide(&self, form: &StructuredOutputs, may_end: bool) -> Result<Guide> {
        let compiled = self.compiled(form)?;
        Ok(Guide::new(compiled, self.pool.jobs()?, may_end))
    }

    fn compiled(&self, form: &StructuredOutputs) -> Result<Arc<Compiled>> {
        if let Some(known) = self.cache.lock().get(form) {
            return Ok(known);
        }
        // Two callers with one new form both compile it: nobody waits under the lock.
        let factory = self.factory()?;
        let build = || {
            let source = source::grammar(form)?;
            factory.create_parser(source).map_err(|error| source::refused(form, &error))
        };
        let start = thread::scope(|scope| {
            let builder = thread::Builder::new().name("rocmforge-grammar".into()).stack_size(STACK_BYTES);
            let running = builder.spawn_scoped(scope, build).map_err(no_thread)?;
            running.join().map_err(|_| Error::internal("a panic in the compilation of a grammar"))
        })??;
        let end_tokens = self.tokenizer.eos_token_ids().into();
        let compiled = Arc::new(Compiled { start, end_tokens, broken: false.into() });
        self.cache.lock().insert(form.clone(), Arc::clone(&compiled));
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
