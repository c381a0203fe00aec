//! The log of what enters and leaves the prefix cache, for routers that keep an index of many engines.

use std::collections::HashMap;
use std::sync::Arc;

use super::{BlockHash, HashChain, KvCache, Tokens};
use crate::batch::GroupKind;
use crate::{Error, Result};

/// A full block that prompts can hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// The range of tokens that the layers of its group attend to.
    pub kind: GroupKind,
    pub hash: BlockHash,
    /// The previous block; `None` for the first block of a sequence.
    pub parent: Option<BlockHash>,
    /// The block's index in its sequence.
    pub index: usize,
    pub token_ids: Vec<u32>,
    pub salt: Option<Arc<str>>,
    pub adapter: Option<u32>,
}

impl StoredBlock {
    /// Describes block `index` of a sequence, whose hash is in `chain`.
    pub(super) fn of(kind: GroupKind, index: usize, chain: &HashChain, tokens: &Tokens, block_size: usize) -> Self {
        Self {
            kind,
            hash: chain.hashes()[index],
            parent: index.checked_sub(1).map(|before| chain.hashes()[before]),
            index,
            token_ids: tokens.range(index * block_size..(index + 1) * block_size).collect(),
            salt: chain.salt().cloned(),
            adapter: chain.adapter(),
        }
    }
}

/// A change of what prompts can hit. A content is stored with its first block and removed with its last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    Stored { group: usize, block: Arc<StoredBlock> },
    Removed { group: usize, hash: BlockHash },
    Cleared,
}

#[derive(Debug)]
pub(super) struct EventLog {
    /// The most events that wait to be taken.
    capacity: usize,
    events: Vec<KvEvent>,
    /// True if the log was full, so that the next reader gets the whole content again.
    overflowed: bool,
    /// Everything that prompts can hit now, by group and hash.
    contents: HashMap<(usize, BlockHash), Arc<StoredBlock>>,
}

impl EventLog {
    fn push(&mut self, event: KvEvent) {
        if self.overflowed {
            return;
        }
        if self.events.len() == self.capacity {
            self.events.clear();
            self.overflowed = true;
        } else {
            self.events.push(event);
        }
    }

    /// Logs that a block can be hit from now on.
    pub(super) fn stored(&mut self, group: usize, block: StoredBlock) {
        let block = Arc::new(block);
        self.contents.insert((group, block.hash), Arc::clone(&block));
        self.push(KvEvent::Stored { group, block });
    }

    pub(super) fn removed(&mut self, group: usize, hash: BlockHash) {
        self.contents.remove(&(group, hash));
        self.push(KvEvent::Removed { group, hash });
    }

    pub(super) fn cleared(&mut self) {
        self.contents.clear();
        self.push(KvEvent::Cleared);
    }

    fn take(&mut self) -> Vec<KvEvent> {
        if !std::mem::take(&mut self.overflowed) {
            return std::mem::take(&mut self.events);
        }
        let mut held: Vec<_> = self.contents.iter().map(|((group, _), block)| (*group, Arc::clone(block))).collect();
        // Blocks are sorted so that the reader knows the previous block of each block.
        held.sort_by_key(|(group, block)| (*group, block.index));
        let stored = held.into_iter().map(|(group, block)| KvEvent::Stored { group, block });
        std::iter::once(KvEvent::Cleared).chain(stored).collect()
    }
}

impl KvCache {
    /// Starts to log what enters and leaves the cache, up to `capacity` events that are not taken. Further events are
    /// dropped, and the next `take_events` reports the whole content again. The first event is `Cleared`, so that a
    /// reader discards what it knows of an earlier engine.
    ///
    /// # Errors
    /// `InvalidRequest` if there is nothing to log, or if the cache has content that the log has not seen.
    pub fn record_events(&mut self, capacity: usize) -> Result<()> {
        if !self.config.enable_prefix_caching {
            return Err(Error::invalid("KV events", "an engine without prefix cache", "enable_prefix_caching=True"));
        }
        if capacity == 0 {
            return Err(Error::invalid("KV events", "a log of 0 events", "at least 1"));
        }
        if self.groups.iter().any(|group| group.pool.index.len() > 0) || self.num_loading() > 0 {
            let expected = "an empty one: start before the first request, or call reset_prefix_cache first";
            return Err(Error::invalid("KV events", "a prefix cache with content", expected));
        }
        let log = EventLog { capacity, events: vec![KvEvent::Cleared], overflowed: false, contents: HashMap::new() };
        self.events = Some(log);
        Ok(())
    }

    /// Stops the log.
    pub fn stop_events(&mut self) {
        self.events = None;
    }

    /// True if `take_events` would return events.
    pub fn has_events(&self) -> bool {
        self.events.as_ref().is_some_and(|log| log.overflowed || !log.events.is_empty())
    }

    /// Takes the events since the last call, oldest first; empty unless events are recorded.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        self.events.as_mut().map_or_else(Vec::new, EventLog::take)
    }
}
