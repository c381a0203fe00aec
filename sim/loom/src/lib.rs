//! Model checks of the engine's lock-free protocols: their sources compiled again with loom's primitives. A separate
//! crate, because compiling the whole engine for four tests takes minutes.

#[path = "../../../src/core/error.rs"]
pub mod error;
#[path = "../../../src/core/interrupt.rs"]
pub mod interrupt;
#[path = "../../../src/cpu/pool/mod.rs"]
pub mod pool;
#[path = "../../../src/core/sync.rs"]
pub mod sync;

pub use error::{Error, Result};
