//! The log of what came into the prefix cache and what went, for routers that keep an index of many engines.

use std::collections::HashMap;
use std::sync::Arc;

use super::{BlockHash, HashChain, KvCache};
use crate::batch::GroupKind;
use crate::{Error, Result};

/// A full block whose content can be hit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// The tokens that the layers of its group attend to.
    pub kind: GroupKind,
    pub hash: BlockHash,
    /// The block before it; `None` for the first of a sequence.
    pub parent: Option<BlockHash>,
    /// Its place in the sequence, in blocks.
    pub index: usize,
    pub token_ids: Vec<u32>,
    pub salt: Option<Arc<str>>,
    pub adapter: Option<u32>,
}

/// A change of what prompts can hit. A content counts as there from the first block that holds it to the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    Stored { group: usize, block: Arc<StoredBlock> },
    Removed { group: usize, hash: BlockHash },
    Cleared,
}

#[derive(Debug)]
pub(super) struct EventLog {
    /// Most events that wait to be taken.
    capacity: usize,
    events: Vec<KvEvent>,
    /// More came than there was room for: the next reader is told everything anew.
    overflowed: bool,
    /// Everything that can be hit now, by group and name.
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

    /// Block `index` of a sequence, which `chain` names, can be hit from now on.
    pub(super) fn stored(&mut self, group: (usize, GroupKind), index: usize, chain: &HashChain, token_ids: Vec<u32>) {
        let (group, kind) = group;
        let hash = chain.hashes()[index];
        let block = Arc::new(StoredBlock {
            kind,
            hash,
            parent: index.checked_sub(1).map(|before| chain.hashes()[before]),
            index,
            token_ids,
            salt: chain.salt().cloned(),
            adapter: chain.adapter(),
        });
        self.contents.insert((group, hash), Arc::clone(&block));
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
        // Whoever reads it knows the block before each block already.
        held.sort_by_key(|(group, block)| (*group, block.index));
        let stored = held.into_iter().map(|(group, block)| KvEvent::Stored { group, block });
        std::iter::once(KvEvent::Cleared).chain(stored).collect()
    }
}

impl KvCache {
    /// Begins to log what comes and goes, up to `capacity` events that nobody has taken. When more come, they are
    /// dropped, and the next `take_events` tells the whole content anew. The first event is `Cleared`: what a reader
    /// knows of an engine before this one is over.
    ///
    /// # Errors
    /// `InvalidRequest` where there is nothing to log, or content that the log has not seen come.
    pub fn record_events(&mut self, capacity: usize) -> Result<()> {
        if !self.config.enable_prefix_caching {
            return Err(Error::invalid("KV events", "an engine without prefix cache", "enable_prefix_caching=True"));
        }
        if capacity == 0 {
            return Err(Error::invalid("KV events", "a log of 0 events", "at least 1"));
        }
        if self.groups.iter().any(|group| group.pool.index.len() > 0) {
            let expected = "an empty one: begin before the first request, or call reset_prefix_cache first";
            return Err(Error::invalid("KV events", "a prefix cache with content", expected));
        }
        let log = EventLog { capacity, events: vec![KvEvent::Cleared], overflowed: false, contents: HashMap::new() };
        self.events = Some(log);
        Ok(())
    }

    /// Ends the log.
    pub fn stop_events(&mut self) {
        self.events = None;
    }

    /// Whether `take_events` has something to give.
    pub fn has_events(&self) -> bool {
        self.events.as_ref().is_some_and(|log| log.overflowed || !log.events.is_empty())
    }

    /// Takes the events since the last call, the earliest first; none unless they are recorded.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        self.events.as_mut().map_or_else(Vec::new, EventLog::take)
    }
}
