//! The index of a bounded tier: its contents, least recently used first.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::ContentKey;

/// The bytes that an entry takes besides its content: its key in two maps.
pub(super) const ENTRY_BYTES: u64 = 160;

#[derive(Debug)]
pub(super) struct Tier {
    capacity: u64,
    bytes: u64,
    entries: HashMap<ContentKey, Entry>,
    by_use: BTreeMap<u64, ContentKey>,
    num_uses: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: u64,
    /// The number of its last use.
    used: u64,
}

impl Tier {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, bytes: 0, entries: HashMap::new(), by_use: BTreeMap::new(), num_uses: 0 }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bytes of all contents, with those of their entries.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, key: &ContentKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Returns the contents, least recently used first.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ContentKey> {
        self.by_use.values()
    }

    /// Notes a use of a content, if the tier has it.
    pub(super) fn touch(&mut self, key: &ContentKey) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.num_uses += 1;
        self.by_use.remove(&entry.used);
        entry.used = self.num_uses;
        self.by_use.insert(entry.used, *key);
    }

    /// Adds a content of `bytes` bytes. Returns the contents that make room for it, oldest use first. A content that is
    /// larger than the tier is returned itself.
    pub(super) fn insert(&mut self, key: ContentKey, bytes: u64) -> Vec<ContentKey> {
        let bytes = bytes.saturating_add(ENTRY_BYTES);
        if bytes > self.capacity {
            return vec![key];
        }
        self.remove(&key);
        let mut gone = Vec::new();
        while self.bytes + bytes > self.capacity
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            let oldest = *oldest;
            self.remove(&oldest);
            gone.push(oldest);
        }
        self.num_uses += 1;
        self.entries.insert(key, Entry { bytes, used: self.num_uses });
        self.by_use.insert(self.num_uses, key);
        self.bytes += bytes;
        gone
    }

    pub(super) fn remove(&mut self, key: &ContentKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// # Errors
    /// The broken invariant.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let sum: u64 = self.entries.values().map(|entry| entry.bytes).sum();
        if sum != self.bytes || self.bytes > self.capacity {
            return Err(format!("{sum} bytes, {} are counted, {} are allowed", self.bytes, self.capacity));
        }
        let is_listed = |(key, entry): (&ContentKey, &Entry)| self.by_use.get(&entry.used) == Some(key);
        match self.by_use.len() == self.entries.len() && self.entries.iter().all(is_listed) {
            true => Ok(()),
            false => Err(format!("{} contents, {} in the order of use", self.entries.len(), self.by_use.len())),
        }
    }
}
