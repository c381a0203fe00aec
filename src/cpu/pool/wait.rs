//! Waiting in steps: spin, then yield. If both are in vain, the caller of `spin_until` parks.

use std::time::Duration;
#[cfg(not(loom))]
use std::time::Instant;

/// Checks between two readings of the clock.
#[cfg(not(loom))]
const SPINS_PER_READING: u32 = 64;
/// Yields before parking. On an oversubscribed machine the awaited thread needs this core.
#[cfg(not(loom))]
const YIELDS: u32 = 8;

/// Returns true as soon as `ready` does, false when it is time to park: after spinning for `spin`.
#[cfg(not(loom))]
pub(super) fn spin_until(spin: Duration, ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..SPINS_PER_READING {
            if ready() {
                return true;
            }
            crate::sync::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() >= spin {
            break;
        }
    }
    (0..YIELDS).any(|_| {
        crate::sync::thread::yield_now();
        ready()
    })
}

/// The model checker explores every interleaving anyway, so one check is enough.
#[cfg(loom)]
pub(super) fn spin_until(_spin: Duration, ready: impl Fn() -> bool) -> bool {
    ready()
}
