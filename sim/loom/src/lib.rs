//! The engine's lock-free protocols, which are model-checked here: their sources compiled once more, with loom's
//! primitives. By itself, because compiling the whole engine for four tests takes minutes.

#[path = "../../../src/error.rs"]
pub mod error;
#[path = "../../../src/interrupt.rs"]
pub mod interrupt;
#[path = "../../../src/backend/cpu/pool/mod.rs"]
pub mod pool;
#[path = "../../../src/sync.rs"]
pub mod sync;

pub use error::{Error, Result};
