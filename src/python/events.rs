//! Events of the KV cache as plain tuples.

use pyo3::IntoPyObject;

use crate::batch::GroupKind;
use crate::kv_cache::KvEvent;

/// `(group, window, hash, parent, token_ids, salt, adapter)` for a stored block, `(group, hash)` for a removed one.
#[derive(IntoPyObject)]
pub(super) enum EventTuple {
    Stored(usize, Option<u32>, u64, Option<u64>, Vec<u32>, Option<String>, Option<u32>),
    Removed(usize, u64),
}

/// Returns a tuple for each event; `None` if all blocks were removed.
pub(super) fn tuples(events: Vec<KvEvent>) -> Vec<Option<EventTuple>> {
    let tuple = |event| match event {
        KvEvent::Stored { group, block } => Some(EventTuple::Stored(
            group,
            match block.kind {
                GroupKind::Full | GroupKind::Bidirectional { .. } => None,
                // A window of a chunk's size holds all tokens of the chunk.
                GroupKind::Sliding { window: tokens } | GroupKind::Chunked { size: tokens } => Some(tokens),
            },
            block.hash.short(),
            block.parent.map(|parent| parent.short()),
            block.token_ids.clone(),
            block.salt.as_deref().map(str::to_owned),
            block.adapter,
        )),
        KvEvent::Removed { group, hash } => Some(EventTuple::Removed(group, hash.short())),
        KvEvent::Cleared => None,
    };
    events.into_iter().map(tuple).collect()
}
