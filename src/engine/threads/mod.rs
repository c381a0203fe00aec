//! Threads and their panics.

pub(crate) mod panics;
pub(crate) mod spawn;
