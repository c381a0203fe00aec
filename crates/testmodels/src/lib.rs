//! Model files that tests of several crates make of golden ones, by writing them again with other keys or tensors.
//!
//! - `nextn` makes drafters that propose the model's tokens.
//! - `rankers` gives encoders the head of a ranking model, and has the scores of transformers.
//! - `vocabulary` gives a draft model the vocabulary of the model.
//!
//! No crate has it but as a dev-dependency. It knows model files (`rocmforge_gguf`) and golden data.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod nextn;
mod rankers;
mod vocabulary;

// The crates below, by the names that the files of this one use.
use rocmforge_gguf::{self as gguf, quant};
use rocmforge_testdata as testdata;

pub use nextn::right_drafts;
pub use rankers::{HIDDEN, RANKERS, golden, ranker};
pub use vocabulary::{cut_vocabulary, of_vocabulary, rewritten};
