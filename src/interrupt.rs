//! A wish that a computation stop, cheap enough to be looked at all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::{Error, Result};

const NEVER: u64 = u64::MAX;

/// A shared wish to stop a computation that runs on other threads. All clones are the same wish. A look at it is one
/// relaxed load while nobody wants anything, and a reading of the clock while a time is set.
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
    /// Withdraws the wish: another computation begins, which nobody wants to stop yet.
    pub fn clear(&self) {
        self.shared.stop_at.store(NEVER, Ordering::Relaxed);
    }

    /// Asks the computation to stop at `when`, or earlier if that was said before.
    pub fn stop_at(&self, when: Instant) {
        let micros = when.saturating_duration_since(self.shared.origin).as_micros();
        self.shared.stop_at.fetch_min(u64::try_from(micros).unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Whether the computation is to stop now. Once it is, it stays so until `clear`.
    pub fn is_due(&self) -> bool {
        // Relaxed: what a thread left out because of it is told to the others by their own synchronisation, and with
        // that the value that the thread saw.
        let stop_at = self.shared.stop_at.load(Ordering::Relaxed);
        stop_at != NEVER && self.shared.origin.elapsed().as_micros() >= u128::from(stop_at)
    }

    /// # Errors
    /// `Interrupted` once the computation is to stop.
    pub fn check(&self) -> Result<()> {
        if self.is_due() { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Whether a time to stop is set, be it to come.
    #[cfg(test)]
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
