//! Decides how large the KV pool is and how it is divided among the model's KV groups, so that the longest total
//! context fits.

use crate::batch::GroupKind;
use crate::config::{EngineArgs, GroupConfig};
use crate::model::{KvGroupSpec, ModelSpec};
use crate::{Error, Result};

/// The pool as it will be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) groups: Vec<GroupConfig>,
    /// Tokens of the longest sequence.
    pub(super) max_model_len: usize,
}

/// The size of the KV pool that the engine's arguments ask for.
#[derive(Debug)]
pub(super) struct PoolWish {
    groups: Vec<Group>,
    block_size: u64,
    max_num_seqs: u64,
    max_num_batched_tokens: u64,
    max_model_len: usize,
    /// Blocks of contexts that can be of use in all, and without which nothing can be served.
    useful: u64,
    needed: u64,
    /// Bytes, where the user names them.
    memory: Option<u64>,
}

#[derive(Debug)]
struct Group {
    kind: GroupKind,
    /// Bytes of one block in all layers of the group.
    block_bytes: u64,
}

impl PoolWish {
    /// # Errors
    /// `InvalidRequest` for a length beyond the model's, or blocks that cannot be.
    pub(super) fn new(args: &EngineArgs, spec: &ModelSpec, max_num_batched_tokens: usize) -> Result<Self> {
        if let Some(len) = args.max_model_len
            && len > spec.context_length
        {
            return Err(Error::invalid(
                "max_model_len",
                len,
                format!("at most the model's context length, {}", spec.context_length),
            ));
        }
        let group = |group: &KvGroupSpec| -> Result<Group> {
            Ok(Group { kind: group.kind, block_bytes: group.block_bytes(args.block_size, args.kv_cache_dtype)? })
        };
        let max_model_len = args.max_model_len.unwrap_or(spec.context_length);
        let longest = max_model_len.div_ceil(args.block_size) as u64;
        Ok(Self {
            groups: spec.kv_groups.iter().map(group).collect::<Result<_>>()?,
            block_size: args.block_size as u64,
            max_num_seqs: args.max_num_seqs as u64,
            max_num_batched_tokens: max_num_batched_tokens as u64,
            max_model_len,
            useful: longest.saturating_mul(args.max_num_seqs as u64),
            needed: if args.max_model_len.is_some() { longest } else { 1 },
            memory: args.kv_cache_memory,
        })
    }

    /// Blocks of a group that hold contexts of `blocks` blocks in all, of `seqs` sequences. Of a window, each sequence
    /// holds the blocks that its next token sees, which begin and end anywhere, and all together those of the step.
    fn blocks(&self, kind: GroupKind, blocks: u64, seqs: u64) -> u64 {
        match kind {
            GroupKind::Full => blocks,
            GroupKind::Sliding { window } => {
                let of_window = u64::from(window.saturating_sub(1)) / self.block_size + 2;
                let of_step = self.max_num_batched_tokens.div_ceil(self.block_size);
                blocks.min(seqs.saturating_mul(of_window).saturating_add(of_step))
            }
        }
    }

    /// Bytes of a pool for contexts of `blocks` blocks in all, of `seqs` sequences.
    fn bytes(&self, blocks: u64, seqs: u64) -> u64 {
        let of_group = |group: &Group| self.blocks(group.kind, blocks, seqs).saturating_mul(group.block_bytes);
        self.groups.iter().map(of_group).fold(0, u64::saturating_add)
    }

    /// Bytes that may go to things that only make steps faster. If the user named the pool's size, that is half of what
    /// the pool leaves (some of the rest is needed by the driver, for the code of these things); else a quarter of what
    /// the smallest pool leaves.
    pub(super) fn spare(&self, available: u64) -> u64 {
        match self.memory {
            Some(bytes) => available.saturating_sub(bytes) / 2,
            None => available.saturating_sub(self.least_bytes()) / 4,
        }
    }

    /// Bytes of the pool without which nothing can be served.
    fn least_bytes(&self) -> u64 {
        self.bytes(self.needed, 1)
    }

    /// # Errors
    /// `OutOfMemory` where what is asked for, or the least that serves, is not there.
    pub(super) fn check(&self, available: u64) -> Result<()> {
        match self.memory {
            Some(bytes) if bytes > available => Err(Error::OutOfMemory {
                what: "the KV cache (kv_cache_memory)".to_owned(),
                requested: bytes,
                available,
                advice: "lower kv_cache_memory",
            }),
            Some(bytes) => self.check_least(bytes, "raise kv_cache_memory or lower max_model_len"),
            None => {
                self.check_least(available, "lower max_model_len or max_num_batched_tokens, or use a smaller model")
            }
        }
    }

    fn check_least(&self, available: u64, advice: &'static str) -> Result<()> {
        let requested = self.least_bytes();
        if requested <= available {
            return Ok(());
        }
        let tokens = if self.needed == 1 { self.block_size } else { self.max_model_len as u64 };
        let what = format!("the KV cache of one sequence of {tokens} tokens");
        Err(Error::OutOfMemory { what, requested, available, advice })
    }

    /// The pool's size and its parts: as asked for, else `default` bytes, or what can be of use.
    pub(super) fn resolve(self, available: u64, default: u64) -> Result<Pool> {
        self.check(available)?;
        // Slots are 32-bit numbers on the device.
        let most = u64::from(u32::MAX - 1) / self.block_size;
        let (bytes, most) = match self.memory {
            Some(bytes) => (bytes, most),
            None => (default, most.min(self.useful)),
        };
        // The default is a part of what is available; the least that serves may take more than that part.
        let bytes = bytes.max(self.least_bytes());
        // If the windows of all sequences do not fit beside the longest context, take as many sequences as do.
        let seqs = largest(1, self.max_num_seqs, |seqs| self.bytes(self.needed, seqs) <= bytes);
        let blocks = largest(self.needed.min(most), most, |blocks| self.bytes(blocks, seqs) <= bytes);
        let config = |group: &Group| GroupConfig {
            kind: group.kind,
            num_blocks: self.blocks(group.kind, blocks, seqs) as usize,
        };
        let groups = self.groups.iter().map(config).collect();
        let held = blocks.saturating_mul(self.block_size);
        let max_model_len = self.max_model_len.min(usize::try_from(held).unwrap_or(usize::MAX));
        Ok(Pool { groups, max_model_len })
    }
}

/// The largest number from `least` to `most` that `fits`, which those above it do not; `least` where none does.
fn largest(least: u64, most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (least, most.max(least));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: u64 = 1 << 20;

    /// Five layers of a window to one of full attention, as in gemma3; blocks of 16 tokens.
    fn wish(memory: Option<u64>, max_num_seqs: u64, max_model_len: usize) -> PoolWish {
        let group = |kind, layers: u64| Group { kind, block_bytes: layers * 64 * 1024 };
        let longest = max_model_len.div_ceil(16) as u64;
        PoolWish {
            groups: vec![group(GroupKind::Sliding { window: 1024 }, 40), group(GroupKind::Full, 8)],
            block_size: 16,
            max_num_seqs,
            max_num_batched_tokens: 512,
            max_model_len,
            useful: longest * max_num_seqs,
            needed: longest,
            memory,
        }
    }

    fn num_blocks(pool: &Pool) -> Vec<usize> {
        pool.groups.iter().map(|group| group.num_blocks).collect()
    }

    #[test]
    fn largest_is_the_last_that_fits() {
        for limit in 0..20 {
            assert_eq!(largest(3, 17, |n| n <= limit), limit.clamp(3, 17));
        }
    }

    /// A long context costs its full layers and the windows, not all layers for all tokens.
    #[test]
    fn windows_bound_their_groups() {
        let pool = wish(None, 1, 32_768).resolve(u64::MAX, u64::MAX).unwrap();
        // 1,023 keys before a token lie in up to 65 blocks, and a step brings 32.
        assert_eq!((num_blocks(&pool), pool.max_model_len), (vec![97, 2048], 32_768));
        let bytes = (97 * 40 + 2048 * 8) * 64 * 1024;
        assert_eq!(wish(None, 1, 32_768).least_bytes(), bytes);
        assert_eq!(wish(Some(bytes), 1, 32_768).resolve(bytes, 0).unwrap(), pool);
        assert!(wish(Some(bytes - 1), 1, 32_768).resolve(bytes, 0).is_err());
    }

    /// Whatever the memory, the parts fit in it, the longest sequence fits in them, and more would not fit.
    #[test]
    fn the_pool_is_divided_without_a_rest() {
        for (memory, seqs) in [(1300, 1), (1500, 4), (1600, 64), (4000, 8), (20_000, 64)] {
            let (memory, wish) = (memory * MEGABYTE, wish(Some(memory * MEGABYTE), seqs, 32_768));
            let (block_bytes, most): (Vec<_>, _) =
                (wish.groups.iter().map(|group| group.block_bytes).collect(), wish.useful);
            let pool = wish.resolve(memory, 0).unwrap();
            let num_blocks = num_blocks(&pool);
            let taken: u64 = num_blocks.iter().zip(&block_bytes).map(|(&n, bytes)| n as u64 * bytes).sum();
            assert!(taken <= memory && pool.max_model_len == 32_768, "{pool:?}");
            assert!(taken + block_bytes.iter().sum::<u64>() > memory || num_blocks[1] as u64 >= most, "{pool:?}");
            assert!(num_blocks[0] >= 97 && num_blocks[1] >= 2048, "{pool:?}");
        }
    }
}
