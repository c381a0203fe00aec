//! Decides how large the KV pool is and how it is divided among the model's KV groups, so that the longest total
//! context fits.
//!
//! Recurrent states have their slots in the pool as well. Those of running sequences take up to half of its bytes: as
//! many of `max_num_seqs` sequences can run as have slots then. Snapshots, and states before guessed tokens, take up to
//! a quarter, but no more than one for each `MIN_INTERVAL` tokens that the pool holds, or for each token that may be
//! guessed of a sequence.

use crate::batch::GroupKind;
use crate::config::{EngineArgs, GroupConfig, StateConfig};
use crate::model::{KvGroupSpec, ModelSpec};
use crate::{Error, Result};

/// The pool's bytes divided by this are the most that the states of running sequences take, and that snapshots take.
const OWN_SHARE: u64 = 2;
const SNAPSHOT_SHARE: u64 = 4;

/// Tokens between two snapshots of a long prompt, at least and at most, unless the user names them. A snapshot is worth
/// as many tokens as have keys and values of its size, but a short prompt is computed anew in no time, and computing
/// thousands of tokens is felt.
const MIN_INTERVAL: u64 = 256;
const MAX_INTERVAL: u64 = 4096;

/// The pool as it will be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) groups: Vec<GroupConfig>,
    pub(super) states: Option<StateConfig>,
    /// Tokens of the longest sequence.
    pub(super) max_model_len: usize,
}

/// The size of the KV pool that the engine's arguments ask for.
#[derive(Debug)]
pub(super) struct PoolWish {
    groups: Vec<Group>,
    states: Option<States>,
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

/// Recurrent states of all layers that have one.
#[derive(Debug)]
struct States {
    /// Bytes of one slot.
    slot_bytes: u64,
    slots_per_seq: u64,
    snapshot_interval: u64,
    /// Whether snapshots are taken.
    has_snapshots: bool,
    /// States that are kept before guessed tokens of a sequence.
    num_guessed: u64,
}

impl States {
    /// `None` for a model without states. `can_stop`: whether a step may be stopped half-way.
    fn new(args: &EngineArgs, slot_bytes: u64, groups: &[Group], can_stop: bool) -> Option<Self> {
        let block_size = args.block_size as u64;
        let block_bytes: u64 = groups.iter().map(|group| group.block_bytes).sum();
        let worth = slot_bytes.saturating_mul(block_size) / block_bytes.max(1);
        let tokens = args.state_snapshot_interval.map_or(worth.clamp(MIN_INTERVAL, MAX_INTERVAL), |own| own as u64);
        (slot_bytes > 0).then_some(Self {
            slot_bytes,
            slots_per_seq: if can_stop { 2 } else { 1 },
            snapshot_interval: tokens.next_multiple_of(block_size),
            has_snapshots: args.enable_prefix_caching,
            num_guessed: args.speculative_config.as_ref().map_or(0, |settings| settings.num_speculative_tokens as u64),
        })
    }

    fn own_bytes(&self, seqs: u64) -> u64 {
        seqs.saturating_mul(self.slots_per_seq).saturating_mul(self.slot_bytes)
    }
}

impl PoolWish {
    /// `can_stop`: whether the device's steps may be stopped half-way.
    ///
    /// # Errors
    /// `InvalidRequest` for a length beyond the model's, or blocks that cannot be.
    pub(super) fn new(
        args: &EngineArgs,
        spec: &ModelSpec,
        max_num_seqs: usize,
        max_num_batched_tokens: usize,
        can_stop: bool,
    ) -> Result<Self> {
        if let Some(len) = args.max_model_len
            && len > spec.context_length
        {
            return Err(Error::invalid(
                "max_model_len",
                len,
                format!("at most the model's context length, {}", spec.context_length),
            ));
        }
        if let Some(len) = args.max_model_len.filter(|len| spec.is_bidirectional() && *len > max_num_batched_tokens) {
            let expected = format!(
                "at most max_num_batched_tokens, which is {max_num_batched_tokens}: the model attends in both \
                 directions, so that a prompt is computed in one step"
            );
            return Err(Error::invalid("max_model_len", len, expected));
        }
        let group = |group: &KvGroupSpec| -> Result<Group> {
            Ok(Group { kind: group.kind, block_bytes: group.block_bytes(args.block_size, args.kv_cache_dtype)? })
        };
        let max_model_len = args.max_model_len.unwrap_or(spec.context_length);
        let max_model_len =
            if spec.is_bidirectional() { max_model_len.min(max_num_batched_tokens) } else { max_model_len };
        let longest = max_model_len.div_ceil(args.block_size) as u64;
        let groups: Vec<Group> = spec.kv_groups.iter().map(group).collect::<Result<_>>()?;
        let max_num_seqs = max_num_seqs as u64;
        let useful = match spec.is_bidirectional() {
            false => longest.saturating_mul(max_num_seqs),
            // Blocks are held for a step: the one that runs, and the one that is scheduled meanwhile.
            true => ((max_num_batched_tokens / args.block_size) as u64).saturating_add(max_num_seqs).saturating_mul(2),
        };
        Ok(Self {
            states: States::new(args, spec.state_bytes(), &groups, can_stop),
            groups,
            block_size: args.block_size as u64,
            max_num_seqs,
            max_num_batched_tokens: max_num_batched_tokens as u64,
            max_model_len,
            useful,
            needed: if args.max_model_len.is_some() { longest } else { 1 },
            memory: args.kv_cache_memory,
        })
    }

    /// Blocks of a group that hold contexts of `blocks` blocks in all, of `seqs` sequences. Of a window, each sequence
    /// holds the blocks that its next token sees, which begin and end anywhere, and all together those of the step.
    fn blocks(&self, kind: GroupKind, blocks: u64, seqs: u64) -> u64 {
        match kind {
            GroupKind::Full | GroupKind::Bidirectional { .. } => blocks,
            GroupKind::Sliding { window } => {
                let of_window = u64::from(window.saturating_sub(1)) / self.block_size + 2;
                let of_step = self.max_num_batched_tokens.div_ceil(self.block_size);
                blocks.min(seqs.saturating_mul(of_window).saturating_add(of_step))
            }
        }
    }

    /// Bytes of a pool for contexts of `blocks` blocks in all, of `seqs` sequences, and for that many snapshots.
    fn bytes(&self, blocks: u64, seqs: u64, snapshots: u64) -> u64 {
        let of_group = |group: &Group| self.blocks(group.kind, blocks, seqs).saturating_mul(group.block_bytes);
        let of_states =
            |states: &States| states.own_bytes(seqs).saturating_add(snapshots.saturating_mul(states.slot_bytes));
        let states = self.states.as_ref().map_or(0, of_states);
        self.groups.iter().map(of_group).fold(states, u64::saturating_add)
    }

    /// Sequences that can run at once in a pool of that many bytes. If the windows and states of all do not fit beside
    /// the longest context, as many as do.
    fn seqs(&self, bytes: u64) -> u64 {
        let own_bytes = |seqs| self.states.as_ref().map_or(0, |states| states.own_bytes(seqs));
        let fits = |seqs| self.bytes(self.needed, seqs, 1) <= bytes && own_bytes(seqs) <= bytes / OWN_SHARE;
        largest(1, self.max_num_seqs, fits)
    }

    /// The most states beside those of `seqs` sequences in a pool of that many bytes, of which one is always there: a
    /// sequence that begins with a snapshot holds it beside its own slots.
    fn snapshots(&self, bytes: u64, seqs: u64) -> u64 {
        let Some(states) = &self.states else { return 1 };
        let most = (bytes / SNAPSHOT_SHARE / states.slot_bytes).min(u64::from(u32::MAX / 2));
        let most = if states.has_snapshots { most } else { most.min(states.num_guessed) };
        largest(1, most, |snapshots| self.bytes(self.needed, seqs, snapshots) <= bytes)
    }

    /// Bytes that may go to copies of weights. Those that only make steps faster may take half of what the pool leaves,
    /// if the user named its size (some of the rest is needed by the driver, for the code of these things), else a
    /// quarter of what the smallest pool leaves. Those that were `asked_for` may take all of that.
    pub(super) fn spare(&self, available: u64, asked_for: bool) -> u64 {
        let (left, share) = match self.memory {
            Some(bytes) => (available.saturating_sub(bytes), 2),
            None => (available.saturating_sub(self.least_bytes()), 4),
        };
        if asked_for { left } else { left / share }
    }

    /// Bytes of the pool without which nothing can be served.
    fn least_bytes(&self) -> u64 {
        self.bytes(self.needed, 1, 1)
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
        let seqs = self.seqs(bytes);
        let most_snapshots = self.snapshots(bytes, seqs);
        let least_snapshots = self.states.as_ref().map_or(0, |states| states.num_guessed);
        let snapshots = |blocks: u64| {
            let of_use = blocks.saturating_mul(self.block_size) / MIN_INTERVAL;
            most_snapshots.min(of_use.max(least_snapshots)).max(1)
        };
        let fits = |blocks| self.bytes(blocks, seqs, snapshots(blocks)) <= bytes;
        let blocks = largest(self.needed.min(most), most, fits);
        let config = |group: &Group| GroupConfig {
            kind: group.kind,
            num_blocks: self.blocks(group.kind, blocks, seqs) as usize,
        };
        let groups = self.groups.iter().map(config).collect();
        let states = self.states.as_ref().map(|states| StateConfig {
            num_slots: (seqs * states.slots_per_seq + snapshots(blocks)) as usize,
            slots_per_seq: states.slots_per_seq as usize,
            snapshot_interval: states.snapshot_interval as usize,
        });
        let held = blocks.saturating_mul(self.block_size);
        let max_model_len = self.max_model_len.min(usize::try_from(held).unwrap_or(usize::MAX));
        Ok(Pool { groups, states, max_model_len })
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
            states: None,
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

    /// A layer of full attention to three of states of 2 MiB, as in qwen35; blocks of 16 tokens.
    fn hybrid(memory: Option<u64>, max_num_seqs: u64, slots_per_seq: u64) -> PoolWish {
        let states = States {
            slot_bytes: 24 * 2 * MEGABYTE,
            slots_per_seq,
            snapshot_interval: 1024,
            has_snapshots: true,
            num_guessed: 0,
        };
        let group = Group { kind: GroupKind::Full, block_bytes: 8 * 64 * 1024 };
        PoolWish { groups: vec![group], states: Some(states), ..wish(memory, max_num_seqs, 32_768) }
    }

    /// Running sequences take half of the pool at most for their slots of 48 MiB, and snapshots a quarter.
    #[test]
    fn states_have_their_shares() {
        let resolve = |megabytes, seqs, slots_per_seq| {
            let memory = megabytes * MEGABYTE;
            let pool = hybrid(Some(memory), seqs, slots_per_seq).resolve(memory, 0).unwrap();
            let states = pool.states.unwrap();
            let bytes = states.num_slots as u64 * 48 * MEGABYTE + pool.groups[0].num_blocks as u64 * MEGABYTE / 2;
            assert!(bytes <= memory && bytes + MEGABYTE / 2 > memory, "{pool:?}");
            assert_eq!((states.slots_per_seq as u64, states.snapshot_interval), (slots_per_seq, 1024));
            (states.num_slots, pool.groups[0].num_blocks)
        };
        // The longest context takes 1,024 MiB. All sequences have their slots, and there are 42 snapshots.
        assert_eq!(resolve(8192, 64, 1), (64 + 42, (8192 - 106 * 48) * 2));
        // Half of it are 85 slots, of which two are a sequence's.
        assert_eq!(resolve(8192, 64, 2), (2 * 42 + 42, (8192 - 126 * 48) * 2));
        // A sequence, what is left beside its context for snapshots, and the least of all.
        assert_eq!(resolve(1024 + 5 * 48, 1, 2), (2 + 3, 2048));
        assert_eq!(resolve(1024 + 3 * 48, 64, 2), (2 + 1, 2048));
        let least = (1024 + 3 * 48) * MEGABYTE;
        assert_eq!(hybrid(None, 64, 2).least_bytes(), least);
        assert!(hybrid(Some(least - 1), 64, 2).resolve(least, 0).is_err());
        // No more snapshots than are of use to 32,768 tokens.
        let pool = hybrid(None, 1, 1).resolve(u64::MAX, u64::MAX).unwrap();
        assert_eq!((pool.states.unwrap().num_slots, num_blocks(&pool)), (1 + 32_768 / 256, vec![2048]));
    }

    /// Guesses have states to go back to without a prefix cache and in a small pool, as long as they fit its quarter.
    #[test]
    fn guesses_have_slots() {
        let resolve = |memory: Option<u64>, max_model_len, has_snapshots, num_guessed| {
            let mut wish = PoolWish { max_model_len, ..hybrid(memory, 1, 1) };
            wish.needed = max_model_len.div_ceil(16) as u64;
            wish.useful = wish.needed;
            wish.states
                .iter_mut()
                .for_each(|states| (states.has_snapshots, states.num_guessed) = (has_snapshots, num_guessed));
            wish.resolve(u64::MAX, 64 << 30).unwrap().states.unwrap().num_slots
        };
        assert_eq!([0, 8].map(|guessed| resolve(None, 1024, true, guessed)), [1 + 4, 1 + 8]);
        assert_eq!([0, 8].map(|guessed| resolve(None, 32_768, false, guessed)), [1 + 1, 1 + 8]);
        assert_eq!(resolve(Some(1000 * MEGABYTE), 1024, false, 8), 1 + 1000 / 4 / 48);
    }

    /// A snapshot is worth the tokens whose keys and values take as much, in whole blocks, within bounds.
    #[test]
    fn the_interval_follows_from_the_cost() {
        let group = || [Group { kind: GroupKind::Full, block_bytes: 16 * 1000 }];
        let interval = |args: &EngineArgs, bytes| States::new(args, bytes, &group(), true).unwrap().snapshot_interval;
        let args = EngineArgs::new("m");
        let expected = [(1, 256), (300_000, 304), (1_000_000, 1008), (1 << 40, 4096)];
        assert_eq!(expected.map(|(bytes, _)| interval(&args, bytes)), expected.map(|(_, tokens)| tokens));
        let own = EngineArgs { state_snapshot_interval: Some(100), ..args };
        assert_eq!(interval(&own, 1 << 40), 112);
        assert!(States::new(&own, 0, &group(), true).is_none());
    }
}
