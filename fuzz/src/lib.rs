//! Promises that hold whatever a user, a client or a file sends. Each module has one function, `check`, that takes any
//! bytes and panics where the engine breaks a promise: libFuzzer calls it with bytes that it makes up (`targets/`), and
//! a test of the engine calls it with those kept in `corpus/` (`src/fuzz_tests.rs`). That test has these modules as its
//! own: so they name each other from `super`.

pub mod chat_template;
mod file;
pub mod gguf;
pub mod sampling;
pub mod tokenizer;

use rocmforge::{Error, Result};

/// Bad input may be refused. An error of the engine's own must not happen, and a panic that it caught is one.
pub(crate) fn allowed<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let text = error.to_string();
            assert!(!matches!(error, Error::Internal { .. }) && !text.contains("panicked"), "{text}");
            None
        }
    }
}
