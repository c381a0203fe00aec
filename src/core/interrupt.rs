//! A request to stop a computation, cheap enough to be checked all the time.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::{Error, Result};

const NEVER: u64 = u64::MAX;

thread_local! {
    static CURRENT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// A shared request to stop a computation that runs on other threads. All clones are the same request. A check is one
/// relaxed load while there is no request, and reads the clock while a time is set.
#[derive(Debug, Clone)]
pub struct Interrupt {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    origin: Instant,
    /// Microseconds after `origin`.
    stop_at: AtomicU64,
}

impl Default for Interrupt {
    fn default() -> Self {
        Self { shared: Arc::new(Shared { origin: Instant::now(), stop_at: AtomicU64::new(NEVER) }) }
    }
}

impl Interrupt {
    /// Withdraws the request, since another computation begins that should not stop yet.
    pub fn clear(&self) {
        self.shared.stop_at.store(NEVER, Ordering::Relaxed);
    }

    /// Asks the computation to stop at `when`, or earlier if an earlier time was set.
    pub fn stop_at(&self, when: Instant) {
        let micros = when.saturating_duration_since(self.shared.origin).as_micros();
        self.shared.stop_at.fetch_min(u64::try_from(micros).unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// True if the computation should stop now. It stays true until `clear`.
    pub fn is_due(&self) -> bool {
        // Relaxed is enough: a thread that skips work because of this tells the others through their own
        // synchronization, and that also publishes the value it saw.
        let is_past = |stop_at| self.shared.origin.elapsed().as_micros() >= u128::from(stop_at);
        self.is_set() && is_past(self.shared.stop_at.load(Ordering::Relaxed))
    }

    /// Returns the interrupt of the work that this thread does in `scope`, or one that is never due.
    pub fn current() -> Self {
        CURRENT.with_borrow(Option::clone).unwrap_or_default()
    }

    /// Runs work on this thread for which `current` returns this interrupt.
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Restores the previous interrupt, even if the work panics.
        struct Outer(Option<Interrupt>);
        impl Drop for Outer {
            fn drop(&mut self) {
                let outer = self.0.take();
                CURRENT.with_borrow_mut(|current| *current = outer);
            }
        }
        let _outer = Outer(CURRENT.replace(Some(self.clone())));
        work()
    }

    /// # Errors
    /// `Interrupted` once the computation should stop.
    pub fn check(&self) -> Result<()> {
        if self.is_due() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// True if a time to stop is set, even a future one.
    pub fn is_set(&self) -> bool {
        self.shared.stop_at.load(Ordering::Relaxed) != NEVER
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_earliest_time_holds_until_it_is_cleared() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.is_due() && !interrupt.is_set());
        let now = Instant::now();
        interrupt.stop_at(now + Duration::from_secs(1000));
        assert!(!interrupt.is_due() && interrupt.is_set());
        interrupt.clone().stop_at(now);
        interrupt.stop_at(now + Duration::from_secs(1000));
        assert!(interrupt.is_due() && matches!(interrupt.check(), Err(Error::Interrupted)));
        interrupt.clear();
        assert!(!interrupt.is_due() && !interrupt.is_set());
        interrupt.check().unwrap();
    }
}
