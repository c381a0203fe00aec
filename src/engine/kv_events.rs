//! The log of what comes into the prefix cache and what goes, as callers of the engine read it.

use super::Engine;
use crate::Result;
use crate::kv_cache::KvEvent;

impl Engine {
    /// Begins to log what comes into the prefix cache and what goes; see `KvCache::record_events`.
    ///
    /// # Errors
    /// `InvalidRequest`, `EngineDead`, `Forked`.
    pub fn record_kv_events(&self, capacity: usize) -> Result<()> {
        self.check_process()?;
        if self.is_closed() {
            return Err(self.closed_error());
        }
        self.inner.shared.kv_cache.write().record_events(capacity)
    }

    /// Ends that log.
    ///
    /// # Errors
    /// `Forked`.
    pub fn stop_kv_events(&self) -> Result<()> {
        self.check_process()?;
        self.inner.shared.kv_cache.write().stop_events();
        Ok(())
    }

    /// Takes what was logged since the last call. The engine is kept waiting only where there is something.
    ///
    /// # Errors
    /// `Forked`.
    pub fn take_kv_events(&self) -> Result<Vec<KvEvent>> {
        self.check_process()?;
        let cache = &self.inner.shared.kv_cache;
        let has_events = cache.read().has_events();
        Ok(if has_events { cache.write().take_events() } else { Vec::new() })
    }
}
