//! Decides how large the KV pool is and how it is divided among the model's KV groups. The aim is the longest total
//! context.
//!
//! Recurrent states have their slots in the pool as well. The states of running sequences take up to half of its bytes,
//! which may limit the number of running sequences below `max_num_seqs`. Snapshots, and states saved before draft
//! tokens, take up to a quarter. Their number is at most one per `MIN_INTERVAL` tokens of the pool, or one per draft
//! token of a sequence.

use crate::backend::Reserve;
use crate::batch::GroupKind;
use crate::config::{EngineArgs, GroupConfig, StateConfig, defaults};
use crate::model::{KvGroupSpec, ModelSpec};
use crate::{Error, Result};

/// Divisors of the pool's bytes: the largest shares of the states of running sequences, and of snapshots.
const OWN_SHARE: u64 = 2;
const SNAPSHOT_SHARE: u64 = 4;

/// Bounds of the number of tokens between two snapshots of a long prompt, unless the user sets it. A snapshot is worth
/// as many tokens as have keys and values of its size. But a short prompt is quickly recomputed, and recomputing
/// thousands of tokens is noticeable.
const MIN_INTERVAL: u64 = 256;
const MAX_INTERVAL: u64 = 4096;

/// Maximum number of blocks of a model without attention. They hold no bytes on the device; the pool counts sequences
/// in them.
const MAX_EMPTY_BLOCKS: u64 = 1 << 18;

/// The resolved pool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) groups: Vec<GroupConfig>,
    pub(crate) states: Option<StateConfig>,
    /// The number of tokens of the longest sequence.
    pub(crate) max_model_len: usize,
}

/// The size of the KV pool that the engine's arguments ask for.
#[derive(Debug)]
pub(crate) struct PoolRequest {
    groups: Vec<Group>,
    states: Option<States>,
    block_size: u64,
    max_num_seqs: u64,
    max_num_batched_tokens: u64,
    max_model_len: usize,
    /// The numbers of context blocks that can be used at most, and that are needed to serve anything.
    useful: u64,
    needed: u64,
    /// The pool's bytes, if the user sets them.
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
    slot_bytes: u64,
    slots_per_seq: u64,
    snapshot_interval: u64,
    /// True if snapshots are taken.
    has_snapshots: bool,
    /// The number of states that are saved before the draft tokens of one sequence.
    num_drafted: u64,
}

impl States {
    /// Returns `None` for a model without states. `can_stop`: true if a step may be interrupted.
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
            num_drafted: args.speculative_config.as_ref().map_or(0, |settings| settings.num_speculative_tokens as u64),
        })
    }

    fn own_bytes(&self, seqs: u64) -> u64 {
        seqs.saturating_mul(self.slots_per_seq).saturating_mul(self.slot_bytes)
    }
}

impl PoolRequest {
    /// Collects what the arguments ask for. `can_stop`: true if the device's steps may be interrupted.
    ///
    /// # Errors
    /// `InvalidRequest` for a length beyond the model's, or for an impossible block size.
    pub(crate) fn new(
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
            // Blocks are held for one step only, by the step in flight and by the one scheduled meanwhile.
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

    /// Returns the number of blocks of a group that hold `blocks` context blocks of `seqs` sequences. In a sliding
    /// window, each sequence holds the blocks visible to its next token, whose ends are not aligned. All sequences
    /// together hold the blocks of the step.
    fn blocks(&self, kind: GroupKind, blocks: u64, seqs: u64) -> u64 {
        match kind {
            GroupKind::Full | GroupKind::Bidirectional { .. } => blocks,
            GroupKind::Sliding { window: tokens } | GroupKind::Chunked { size: tokens } => {
                let of_window = u64::from(tokens.saturating_sub(1)) / self.block_size + 2;
                let of_step = self.max_num_batched_tokens.div_ceil(self.block_size);
                blocks.min(seqs.saturating_mul(of_window).saturating_add(of_step))
            }
        }
    }

    /// Returns the bytes of a pool for `blocks` context blocks of `seqs` sequences and for `snapshots` snapshots.
    fn bytes(&self, blocks: u64, seqs: u64, snapshots: u64) -> u64 {
        let of_group = |group: &Group| self.blocks(group.kind, blocks, seqs).saturating_mul(group.block_bytes);
        let of_states =
            |states: &States| states.own_bytes(seqs).saturating_add(snapshots.saturating_mul(states.slot_bytes));
        let states = self.states.as_ref().map_or(0, of_states);
        self.groups.iter().map(of_group).fold(states, u64::saturating_add)
    }

    /// Returns the number of sequences that can run at once in a pool of `bytes` bytes. It is lower than `max_num_seqs`
    /// if the windows and states of all do not fit next to the longest context.
    fn seqs(&self, bytes: u64) -> u64 {
        let own_bytes = |seqs| self.states.as_ref().map_or(0, |states| states.own_bytes(seqs));
        let fits = |seqs| self.bytes(self.needed, seqs, 1) <= bytes && own_bytes(seqs) <= bytes / OWN_SHARE;
        largest(1, self.max_num_seqs, fits)
    }

    /// Returns the maximum number of states in a pool of `bytes` bytes, without the slots of `seqs` sequences. It is at
    /// least one, since a sequence that continues from a snapshot holds the snapshot and its own slots.
    fn snapshots(&self, bytes: u64, seqs: u64) -> u64 {
        let Some(states) = &self.states else { return 1 };
        let most = (bytes / SNAPSHOT_SHARE / states.slot_bytes).min(u64::from(u32::MAX / 2));
        let most = if states.has_snapshots { most } else { most.min(states.num_drafted) };
        largest(1, most, |snapshots| self.bytes(self.needed, seqs, snapshots) <= bytes)
    }

    /// Returns the bytes that copies of weights may use. Copies that were `asked_for` may use all that the pool leaves.
    /// Others only make steps faster. They get half of that if the user sets the pool's size, since the driver needs
    /// some of the rest for code. Otherwise they get a quarter of what the smallest pool leaves.
    pub(super) fn spare(&self, available: u64, asked_for: bool) -> u64 {
        let (left, share) = match self.memory {
            Some(bytes) => (available.saturating_sub(bytes), 2),
            None => (available.saturating_sub(self.least_bytes()), 4),
        };
        if asked_for { left } else { left / share }
    }

    /// Returns the bytes of the smallest pool that can serve a request.
    fn least_bytes(&self) -> u64 {
        self.bytes(self.needed, 1, 1)
    }

    /// Returns the bytes that weights must leave for the pool: the requested size, else the smallest pool, and the pool
    /// for which some weights may go elsewhere.
    pub(super) fn reserve(&self) -> Reserve {
        let least = self.memory.unwrap_or(self.least_bytes());
        let blocks = defaults::ROOM_MADE_TOKENS.div_ceil(self.block_size).min(self.useful).max(self.needed);
        let seqs = self.max_num_seqs.min(defaults::ROOM_MADE_SEQS);
        let own = self.states.as_ref().map_or(0, |states| states.own_bytes(seqs));
        let wanted = self.bytes(blocks, seqs, seqs).max(own.saturating_mul(OWN_SHARE));
        Reserve { least, wanted: self.memory.unwrap_or(wanted.max(least)) }
    }

    /// # Errors
    /// `OutOfMemory` if the requested pool, or the smallest useful one, does not fit.
    pub(crate) fn check(&self, available: u64) -> Result<()> {
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

    /// Resolves the pool's size and its parts: the requested size, else `default` bytes or what can be used.
    pub(super) fn resolve(self, available: u64, default: u64) -> Result<Pool> {
        self.check(available)?;
        // Slots are 32-bit numbers on the device.
        let most = u64::from(u32::MAX - 1) / self.block_size;
        let (bytes, most) = match self.memory {
            Some(bytes) => (bytes, most),
            None => (default, most.min(self.useful)),
        };
        let is_empty = self.groups.iter().all(|group| group.block_bytes == 0);
        let most = if is_empty { most.min(self.needed.max(MAX_EMPTY_BLOCKS)) } else { most };
        // The default is a part of what is available. The smallest useful pool may be larger than that part.
        let bytes = bytes.max(self.least_bytes());
        let seqs = self.seqs(bytes);
        let most_snapshots = self.snapshots(bytes, seqs);
        let least_snapshots = self.states.as_ref().map_or(0, |states| states.num_drafted);
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

/// Returns the largest number from `least` to `most` that `fits`, where no larger number fits; `least` if none does.
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

    /// Five sliding-window layers for each layer of full attention, as in gemma3; blocks of 16 tokens.
    fn request(memory: Option<u64>, max_num_seqs: u64, max_model_len: usize) -> PoolRequest {
        let group = |kind, layers: u64| Group { kind, block_bytes: layers * 64 * 1024 };
        let longest = max_model_len.div_ceil(16) as u64;
        PoolRequest {
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
        let pool = request(None, 1, 32_768).resolve(u64::MAX, u64::MAX).unwrap();
        // 1,023 keys before a token lie in up to 65 blocks, and a step adds 32.
        assert_eq!((num_blocks(&pool), pool.max_model_len), (vec![97, 2048], 32_768));
        let bytes = (97 * 40 + 2048 * 8) * 64 * 1024;
        assert_eq!(request(None, 1, 32_768).least_bytes(), bytes);
        assert_eq!(request(Some(bytes), 1, 32_768).resolve(bytes, 0).unwrap(), pool);
        assert!(request(Some(bytes - 1), 1, 32_768).resolve(bytes, 0).is_err());
    }

    /// For any memory, the parts fit in it, the longest sequence fits in them, and more would not fit.
    #[test]
    fn the_pool_is_divided_without_a_rest() {
        for (memory, seqs) in [(1300, 1), (1500, 4), (1600, 64), (4000, 8), (20_000, 64)] {
            let (memory, request) = (memory * MEGABYTE, request(Some(memory * MEGABYTE), seqs, 32_768));
            let (block_bytes, most): (Vec<_>, _) =
                (request.groups.iter().map(|group| group.block_bytes).collect(), request.useful);
            let pool = request.resolve(memory, 0).unwrap();
            let num_blocks = num_blocks(&pool);
            let taken: u64 = num_blocks.iter().zip(&block_bytes).map(|(&n, bytes)| n as u64 * bytes).sum();
            assert!(taken <= memory && pool.max_model_len == 32_768, "{pool:?}");
            assert!(taken + block_bytes.iter().sum::<u64>() > memory || num_blocks[1] as u64 >= most, "{pool:?}");
            assert!(num_blocks[0] >= 97 && num_blocks[1] >= 2048, "{pool:?}");
        }
    }

    /// Weights leave room for a few sequences, for the longest one that the user sets, or for the requested bytes.
    #[test]
    fn weights_leave_room_for_the_pool() {
        let reserve = |request: PoolRequest| {
            let Reserve { least, wanted } = request.reserve();
            [least, wanted].map(|bytes| bytes / (64 * 1024))
        };
        let few = |needed| PoolRequest { needed, ..request(None, 64, 32_768) };
        // One block of each layer, or the windows of eight sequences with a step and 512 full blocks.
        assert_eq!(reserve(few(1)), [48, 512 * 40 + 512 * 8]);
        assert_eq!(reserve(few(2048)), [97 * 40 + 2048 * 8, (8 * 65 + 32) * 40 + 2048 * 8]);
        assert_eq!(reserve(request(Some(100 * 64 * 1024), 64, 32_768)), [100, 100]);
        // Half of the pool holds the states of eight sequences.
        let states = PoolRequest { needed: 1, ..hybrid(None, 64, 1) }.reserve();
        assert_eq!(states.wanted, (16 * 48 + 256) * MEGABYTE);
        assert!(states.least < states.wanted);
    }

    /// One layer of full attention for three layers with states of 2 MiB, as in qwen35; blocks of 16 tokens.
    fn hybrid(memory: Option<u64>, max_num_seqs: u64, slots_per_seq: u64) -> PoolRequest {
        let states = States {
            slot_bytes: 24 * 2 * MEGABYTE,
            slots_per_seq,
            snapshot_interval: 1024,
            has_snapshots: true,
            num_drafted: 0,
        };
        let group = Group { kind: GroupKind::Full, block_bytes: 8 * 64 * 1024 };
        PoolRequest { groups: vec![group], states: Some(states), ..request(memory, max_num_seqs, 32_768) }
    }

    /// Running sequences use at most half of the pool for their slots of 48 MiB, and snapshots a quarter.
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
        // Half of the pool holds 85 slots, and a sequence needs two.
        assert_eq!(resolve(8192, 64, 2), (2 * 42 + 42, (8192 - 126 * 48) * 2));
        // One sequence, snapshots in the space that its context leaves, and the smallest pool.
        assert_eq!(resolve(1024 + 5 * 48, 1, 2), (2 + 3, 2048));
        assert_eq!(resolve(1024 + 3 * 48, 64, 2), (2 + 1, 2048));
        let least = (1024 + 3 * 48) * MEGABYTE;
        assert_eq!(hybrid(None, 64, 2).least_bytes(), least);
        assert!(hybrid(Some(least - 1), 64, 2).resolve(least, 0).is_err());
        // No more snapshots than 32,768 tokens can use.
        let pool = hybrid(None, 1, 1).resolve(u64::MAX, u64::MAX).unwrap();
        assert_eq!((pool.states.unwrap().num_slots, num_blocks(&pool)), (1 + 32_768 / 256, vec![2048]));
    }

    /// Draft tokens have states to return to even without a prefix cache or in a small pool. They must fit in a quarter
    /// of the pool.
    #[test]
    fn drafts_have_slots() {
        let resolve = |memory: Option<u64>, max_model_len, has_snapshots, num_drafted| {
            let mut request = PoolRequest { max_model_len, ..hybrid(memory, 1, 1) };
            request.needed = max_model_len.div_ceil(16) as u64;
            request.useful = request.needed;
            request
                .states
                .iter_mut()
                .for_each(|states| (states.has_snapshots, states.num_drafted) = (has_snapshots, num_drafted));
            request.resolve(u64::MAX, 64 << 30).unwrap().states.unwrap().num_slots
        };
        assert_eq!([0, 8].map(|drafted| resolve(None, 1024, true, drafted)), [1 + 4, 1 + 8]);
        assert_eq!([0, 8].map(|drafted| resolve(None, 32_768, false, drafted)), [1 + 1, 1 + 8]);
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
