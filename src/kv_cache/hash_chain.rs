//! Names of block contents: each full block of a sequence is named by a keyed BLAKE3 hash of its tokens and the
//! name of the block before it, so that one name stands for a whole prefix. 256 bits under a secret key: equal
//! names mean equal prefixes, also against somebody who looks for collisions.

use std::sync::Arc;

use super::Tokens;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash(pub(super) [u8; 32]);

impl BlockHash {
    /// 64 bits of the name, for those who tell contents apart and share nothing by it.
    pub fn short(&self) -> u64 {
        self.0[..8].iter().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    }
}

/// Prefixes hashed into the parent of first blocks (the root) of sequences without a salt, and with one.
const UNSALTED: &[u8] = b"rocmforge kv root: unsalted";
const SALTED: &[u8] = b"rocmforge kv root: salted:";
/// Prefix of the root of sequences with an adapter, followed by the root without it and the adapter's number.
const ADAPTED: &[u8] = b"rocmforge kv root: adapted:";

/// The names of a sequence's full blocks, extended as tokens come.
#[derive(Debug, Clone)]
pub struct HashChain {
    key: [u8; 32],
    root: BlockHash,
    salt: Option<Arc<str>>,
    adapter: Option<u32>,
    hashes: Vec<BlockHash>,
    /// Bytes being hashed; kept to hash without allocating.
    scratch: Vec<u8>,
}

impl HashChain {
    /// Sequences share blocks only with those of an equal `salt` and `adapter`.
    pub(super) fn new(key: [u8; 32], salt: Option<&str>, adapter: Option<u32>) -> Self {
        let mut root = match salt {
            None => blake3::keyed_hash(&key, UNSALTED),
            Some(salt) => blake3::keyed_hash(&key, &[SALTED, salt.as_bytes()].concat()),
        };
        if let Some(adapter) = adapter {
            root = blake3::keyed_hash(&key, &[ADAPTED, root.as_bytes(), &adapter.to_le_bytes()].concat());
        }
        Self {
            key,
            root: BlockHash(*root.as_bytes()),
            salt: salt.map(Arc::from),
            adapter,
            hashes: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Names every full block of `tokens` that has no name yet. `tokens` begins with what was named before.
    pub(super) fn extend(&mut self, tokens: &Tokens, block_size: usize) {
        let mut named = self.hashes.len() * block_size;
        while named + block_size <= tokens.len() {
            let parent = self.hashes.last().unwrap_or(&self.root);
            self.scratch.clear();
            self.scratch.extend_from_slice(&parent.0);
            for token in tokens.range(named..named + block_size) {
                self.scratch.extend_from_slice(&token.to_le_bytes());
            }
            self.hashes.push(BlockHash(*blake3::keyed_hash(&self.key, &self.scratch).as_bytes()));
            named += block_size;
        }
    }

    pub(super) fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    pub(super) fn salt(&self) -> Option<&Arc<str>> {
        self.salt.as_ref()
    }

    pub(super) fn adapter(&self) -> Option<u32> {
        self.adapter
    }
}
