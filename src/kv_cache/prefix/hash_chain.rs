//! Hashes of block contents. Each full block of a sequence has a keyed BLAKE3 hash. It covers the block's tokens, the
//! images that they stand for, and the previous block's hash. So one hash identifies a whole prefix. With 256 bits
//! under a secret key, equal hashes mean equal prefixes, even against someone who looks for collisions.

use std::sync::Arc;

use crate::Tokens;
use crate::batch::SeqExtras;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash(pub(crate) [u8; 32]);

impl BlockHash {
    /// Returns the hash with these bytes, for contents that outlive the engine.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns 64 bits of the hash, for uses that only compare contents and share no data by it.
    pub fn short(&self) -> u64 {
        self.0[..8].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    }
}

/// Prefixes of the hash input for the root, which is the parent of first blocks: without a salt, and with one.
const UNSALTED: &[u8] = b"rocmforge kv root: unsalted";
const SALTED: &[u8] = b"rocmforge kv root: salted:";
/// Prefix of the root's input for sequences with an adapter, followed by the other root and the adapter's number.
const ADAPTED: &[u8] = b"rocmforge kv root: adapted:";

/// The hashes of a sequence's full blocks, extended as tokens arrive.
#[derive(Debug, Clone)]
pub struct HashChain {
    key: [u8; 32],
    root: BlockHash,
    salt: Option<Arc<str>>,
    extras: SeqExtras,
    hashes: Vec<BlockHash>,
    /// The bytes being hashed; kept so that hashing does not allocate.
    scratch: Vec<u8>,
}

impl HashChain {
    /// Sequences share blocks only with those of the same `salt` and adapter.
    pub(crate) fn new(key: [u8; 32], salt: Option<&str>, extras: SeqExtras) -> Self {
        let mut root = match salt {
            None => blake3::keyed_hash(&key, UNSALTED),
            Some(salt) => blake3::keyed_hash(&key, &[SALTED, salt.as_bytes()].concat()),
        };
        if let Some(adapter) = extras.adapter {
            root = blake3::keyed_hash(&key, &[ADAPTED, root.as_bytes(), &adapter.to_le_bytes()].concat());
        }
        Self {
            key,
            root: BlockHash(*root.as_bytes()),
            salt: salt.map(Arc::from),
            extras,
            hashes: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Hashes every full block of `tokens` that has no hash yet. `tokens` must begin with the tokens hashed before.
    pub(crate) fn extend(&mut self, tokens: &Tokens, block_size: usize) {
        let mut named = self.hashes.len() * block_size;
        while named + block_size <= tokens.len() {
            let parent = self.hashes.last().unwrap_or(&self.root);
            self.scratch.clear();
            self.scratch.extend_from_slice(&parent.0);
            for token in tokens.range(named..named + block_size) {
                self.scratch.extend_from_slice(&token.to_le_bytes());
            }
            if let Some(images) = &self.extras.images {
                // The tokens of an image are placeholders for its rows. The first row may be before the block.
                for span in images.within(named..named + block_size) {
                    let first = i64::from(span.first) - i64::from(span.first_row) - named as i64;
                    self.scratch.extend_from_slice(&span.digest);
                    self.scratch.extend_from_slice(&first.to_le_bytes());
                }
            }
            self.hashes.push(BlockHash(*blake3::keyed_hash(&self.key, &self.scratch).as_bytes()));
            named += block_size;
        }
    }

    /// Returns the hashes of the full blocks so far.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    pub(crate) fn salt(&self) -> Option<&Arc<str>> {
        self.salt.as_ref()
    }

    pub(crate) fn adapter(&self) -> Option<u32> {
        self.extras.adapter
    }
}
