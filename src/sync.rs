//! Synchronisation primitives: `std`'s, or loom's where `sim/loom` compiles the protocols written by hand (the thread
//! pool), to model-check them.

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
