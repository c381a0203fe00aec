//! Copies to the device. They run beside the steps, and the sequences that need them wait.

use super::{Executor, Move, Offload};
use crate::{Error, Result};

/// The bytes that a synchronous device copies between two steps; at least one content is.
const LOAD_BYTES: u64 = 64 << 20;

impl Offload {
    /// True if contents are on their way to the device.
    pub(crate) fn is_loading(&self) -> bool {
        self.kv_cache.read().num_loading() > 0
    }

    /// Begins copies to the device, as many as it takes at once.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn begin_loads(&mut self, executor: &mut dyn Executor) -> Result<()> {
        let mut left = if executor.is_asynchronous() { u64::MAX } else { LOAD_BYTES };
        while let Some((Move { key, block }, content)) = self.to_load.front() {
            if content.is_empty() {
                self.kv_cache.write().end_load(key)?;
            } else if left > 0 && executor.restore(self.num_loads, key.pool, *block, content)? {
                left = left.saturating_sub(content.len() as u64);
                self.loading.insert(self.num_loads, *key);
                self.num_loads += 1;
            } else {
                return Ok(());
            }
            self.to_load.pop_front();
        }
        Ok(())
    }

    /// Ends the copies to the device whose bytes have arrived, with `wait` all that were begun. Returns true if there
    /// were any.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn end_loads(&mut self, wait: bool, executor: &mut dyn Executor) -> Result<bool> {
        let mut has_ended = false;
        while let Some(number) = executor.restored(wait)? {
            let unknown = || Error::internal(format!("copy {number} to the device is unknown"));
            let key = self.loading.remove(&number).ok_or_else(unknown)?;
            self.kv_cache.write().end_load(&key)?;
            has_ended = true;
        }
        if executor.is_asynchronous() {
            self.begin_moves(executor)?;
        }
        Ok(has_ended)
    }

    /// Makes all copies to the device that were asked for, and waits for them.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn finish_loads(&mut self, executor: &mut dyn Executor) -> Result<()> {
        self.move_contents(executor)?;
        while !self.loading.is_empty() || !self.to_load.is_empty() {
            self.end_loads(true, executor)?;
            self.begin_moves(executor)?;
        }
        Ok(())
    }
}

impl Drop for Offload {
    /// Frees the blocks of copies that will not end.
    fn drop(&mut self) {
        self.kv_cache.write().abandon_loads();
    }
}
