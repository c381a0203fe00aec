//! Synchronization primitives: those of `std`, or of loom where `sim/loom` model-checks the hand-written protocols of
//! the thread pool.

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
