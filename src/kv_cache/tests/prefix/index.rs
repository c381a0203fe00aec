use std::collections::HashSet;

use crate::batch::SeqExtras;
use crate::prefix::prefix_index::PrefixIndex;
use crate::{BlockHash, BlockId, HashChain, Tokens};

fn hashes(key: [u8; 32], salt: Option<&str>, tokens: &[u32], block_size: usize) -> Vec<BlockHash> {
    let mut chain = HashChain::new(key, salt, SeqExtras::default());
    chain.extend(&Tokens::new(tokens.into()), block_size);
    chain.hashes().to_vec()
}

/// The hash of a block is the one defined: keyed BLAKE3 of its parent's hash and its tokens.
#[test]
fn test_hash_block_tokens() {
    let key = [5; 32];
    let mut parent = *blake3::keyed_hash(&key, b"rocmforge kv root: salted:tenant").as_bytes();
    let tokens: Vec<u32> = vec![1, 2, 0x0102_0304, u32::MAX, 7];
    let got = hashes(key, Some("tenant"), &tokens, 2);
    assert_eq!(got.len(), 2, "the last block is not full");
    for (block, name) in tokens.chunks_exact(2).zip(got) {
        let bytes: Vec<u8> = parent.iter().copied().chain(block.iter().flat_map(|token| token.to_le_bytes())).collect();
        parent = *blake3::keyed_hash(&key, &bytes).as_bytes();
        assert_eq!(name, BlockHash(parent));
    }
}

/// A block's hash depends on everything before it, on the salt and on the engine's key.
#[test]
fn test_generate_block_hash_extra_keys_cache_salt() {
    let tokens = [1, 2, 3, 4, 5, 6];
    let mut seen = HashSet::new();
    for key in [[1; 32], [2; 32]] {
        for salt in [None, Some(""), Some("a"), Some("b")] {
            for name in hashes(key, salt, &tokens, 2) {
                assert!(seen.insert(name), "key {key:?}, salt {salt:?}");
            }
        }
    }
    // The hash depends on the adapter, too, with any salt.
    for salt in [None, Some(""), Some("a")] {
        for adapter in [0, 1, u32::MAX] {
            let mut chain = HashChain::new([1; 32], salt, SeqExtras { adapter: Some(adapter), images: None });
            chain.extend(&Tokens::new(tokens.into()), 2);
            for name in chain.hashes() {
                assert!(seen.insert(*name), "salt {salt:?}, adapter {adapter}");
            }
        }
    }
    // The second blocks are equal, but follow different first ones.
    assert_ne!(hashes([1; 32], None, &[1, 2, 3, 4], 2)[1], hashes([1; 32], None, &[9, 2, 3, 4], 2)[1]);
}

/// The first block's parent is a hash that no block can have by chance, and not an empty one.
#[test]
fn test_null_parent_block_hash() {
    let plain = *blake3::keyed_hash(&[1; 32], &7u32.to_le_bytes()).as_bytes();
    assert_ne!(hashes([1; 32], None, &[7], 1)[0], BlockHash(plain));
}

#[test]
fn chain_grows_with_its_tokens() {
    let tokens: Vec<u32> = (0..50).collect();
    for block_size in [1, 3, 16] {
        let whole = hashes([1; 32], None, &tokens, block_size);
        assert_eq!(whole.len(), 50 / block_size);
        // A hash does not depend on where the prompt ends, even within a block.
        for prompt_len in 0..=tokens.len() {
            let mut chain = HashChain::new([1; 32], None, SeqExtras::default());
            let mut seq = Tokens::new(tokens[..prompt_len].into());
            chain.extend(&seq, block_size);
            for (i, token) in tokens.iter().enumerate().skip(prompt_len) {
                assert_eq!(chain.hashes(), &whole[..i / block_size]);
                seq.push(*token);
                chain.extend(&seq, block_size);
            }
            assert_eq!(chain.hashes(), whole);
        }
    }
}

#[test]
fn test_block_lookup_cache_single_block_per_key() {
    let names = hashes([1; 32], None, &[1, 2, 3], 1);
    let mut index = PrefixIndex::default();
    assert_eq!(index.get(&names[0]), None);
    index.insert(names[0], BlockId(4));
    index.insert(names[1], BlockId(5));
    assert_eq!((index.get(&names[0]), index.get(&names[1])), (Some(BlockId(4)), Some(BlockId(5))));
    assert!(!index.remove(&names[0], BlockId(5)), "another block of another content");
    assert!(!index.remove(&names[2], BlockId(4)), "a content that nobody holds");
    assert!(index.remove(&names[0], BlockId(4)));
    assert!(!index.remove(&names[0], BlockId(4)), "already gone");
    assert_eq!((index.get(&names[0]), index.len()), (None, 1));
}

#[test]
fn test_block_lookup_cache_multi_blocks_per_key() {
    let name = hashes([1; 32], None, &[1], 1)[0];
    let mut index = PrefixIndex::default();
    for id in [7, 3, 5, 3] {
        index.insert(name, BlockId(id));
    }
    assert_eq!(index.len(), 3, "inserting twice is nothing");
    assert_eq!(index.get(&name), Some(BlockId(3)));
    assert!(index.remove(&name, BlockId(3)));
    assert!(!index.remove(&name, BlockId(3)));
    assert_eq!(index.get(&name), Some(BlockId(5)));
    assert!(index.remove(&name, BlockId(5)));
    assert_eq!((index.get(&name), index.len()), (Some(BlockId(7)), 1));
    assert!(!index.remove(&name, BlockId(5)));
    assert!(index.remove(&name, BlockId(7)));
    assert_eq!((index.get(&name), index.len()), (None, 0));
}
