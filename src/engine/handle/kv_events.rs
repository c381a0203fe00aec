//! The KV events of the prefix cache, as callers of the engine read them.

use crate::Engine;
use crate::Result;
use crate::kv_cache::KvEvent;

impl Engine {
    /// Starts to log what enters and leaves the prefix cache; see `KvCache::record_events`.
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

    /// Stops the log.
    ///
    /// # Errors
    /// `Forked`.
    pub fn stop_kv_events(&self) -> Result<()> {
        self.check_process()?;
        self.inner.shared.kv_cache.write().stop_events();
        Ok(())
    }

    /// Takes the events since the last call. The engine thread is blocked only if there are events.
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
