//! Loads, stores, atomic operations and caches.

mod address;
mod atomic;
pub(super) mod buffer;
pub(super) mod cache;
pub(super) mod flat;
pub(super) mod lds;
mod transfer;
