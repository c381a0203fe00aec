//! A cache of compiled grammars; the least recently used is evicted first.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::compiled::Compiled;
use crate::config::StructuredOutputs;

/// The most grammars in the cache.
const MAX_ENTRIES: usize = 128;
/// Maximum bytes of cached grammars at their present size; they grow while texts are generated.
const MAX_BYTES: usize = 256 << 20;

#[derive(Default)]
pub(super) struct Cache {
    entries: HashMap<StructuredOutputs, Entry>,
    /// The number of lookups so far.
    clock: u64,
}

struct Entry {
    compiled: Arc<Compiled>,
    used: u64,
}

impl Cache {
    /// Looks up a grammar. One that broke during generation is removed instead.
    pub(super) fn get(&mut self, outputs: &StructuredOutputs) -> Option<Arc<Compiled>> {
        self.clock += 1;
        let entry = self.entries.get_mut(outputs)?;
        if entry.compiled.broken.load(Ordering::Relaxed) {
            self.entries.remove(outputs);
            return None;
        }
        entry.used = self.clock;
        Some(Arc::clone(&entry.compiled))
    }

    pub(super) fn insert(&mut self, outputs: StructuredOutputs, compiled: Arc<Compiled>) {
        self.clock += 1;
        self.entries.insert(outputs, Entry { compiled, used: self.clock });
        self.shrink();
    }

    /// Evicts grammars while there are too many, or they have grown too large. The last used one always stays, since
    /// each grammar has its own size limit.
    pub(super) fn shrink(&mut self) {
        let mut bytes: usize = self.entries.values().map(|entry| entry.compiled.bytes()).sum();
        while self.entries.len() > MAX_ENTRIES || (bytes > MAX_BYTES && self.entries.len() > 1) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(outputs, _)| outputs.clone());
            let Some(gone) = oldest.and_then(|outputs| self.entries.remove(&outputs)) else { return };
            bytes = bytes.saturating_sub(gone.compiled.bytes());
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
