//! Synchronisation primitives: `std`'s, or loom's when the crate is built with `--cfg loom`, so that the
//! protocols written by hand (the thread pool) can be model-checked.

#[cfg(not(loom))]
pub use std::{
    hint,
    sync::atomic,
    sync::{Arc, Condvar, Mutex},
    thread,
};

#[cfg(loom)]
pub use loom::{
    hint,
    sync::atomic,
    sync::{Arc, Condvar, Mutex},
    thread,
};
