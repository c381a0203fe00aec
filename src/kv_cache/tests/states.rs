//! Slots of recurrent states: those of running sequences, and snapshots.

use super::*;
use crate::Error;

fn slots(num_slots: usize, slots_per_seq: usize) -> StateConfig {
    StateConfig { num_slots, slots_per_seq, snapshot_interval: 4 }
}

/// Returns a cache with one group, blocks of 4 tokens, and one slot per sequence.
fn hybrid(num_blocks: usize, num_slots: usize) -> KvCache {
    cache_with(&[full(num_blocks)], Some(slots(num_slots, 1)), 4)
}

/// (free, cached, owned) slots
fn slot_counts(kv: &KvCache) -> (usize, usize, usize) {
    let stats = kv.stats();
    assert_eq!(stats.state_slots_free + stats.state_slots_cached + stats.state_slots_owned, stats.state_slots_total);
    (stats.state_slots_free, stats.state_slots_cached, stats.state_slots_owned)
}

/// Computes the rest of a sequence's tokens with these snapshots, none of them rolling.
fn compute_with(kv: &mut KvCache, seq: &mut Seq, positions: &[usize], keep_free: usize) {
    let snapshots: Vec<_> = positions.iter().map(|&position| Snapshot { position, is_rolling: false }).collect();
    let range = seq.num_computed..seq.tokens.len();
    kv.begin_step(&mut seq.blocks, &seq.chain, range, &snapshots, keep_free).unwrap();
    seq.num_computed = seq.tokens.len();
    seq.compute(kv);
}

/// There are an own slot, the snapshot that a fork and its parent share, one without an owner, and a free one.
#[test]
fn state_map_tells_each_slot() {
    let mut kv = hybrid(16, 4);
    kv.tick(1_000);
    let mut seq = Seq::start(&mut kv, &text(1, 9)).unwrap();
    compute_with(&mut kv, &mut seq, &[8], 0);
    kv.tick(2_000);
    let info = |state, owners, hashed, idle_micros| BlockInfo { state, owners, hashed, idle_micros };
    let mut map = kv.state_map(9_000);
    map.sort_by_key(|slot| slot.owners);
    let free = info(BlockState::Free, 0, false, 9_000);
    assert_eq!(map.pop(), Some(info(BlockState::Owned, 1, false, 0)));
    assert!(map.contains(&info(BlockState::Cached, 0, true, 8_000)), "{map:?}");
    assert_eq!(map.iter().filter(|slot| **slot == free).count(), 2);
    seq.end(&mut kv);
    assert!(cache(4).state_map(0).is_empty());
}

#[test]
fn a_hit_ends_where_a_state_was_kept() {
    let mut kv = hybrid(16, 8);
    let mut first = Seq::start(&mut kv, &text(1, 18)).unwrap();
    compute_with(&mut kv, &mut first, &[8, 12], 0);
    assert_eq!(slot_counts(&kv), (5, 2, 1));
    first.end(&mut kv);
    assert_eq!(slot_counts(&kv), (6, 2, 0));
    let again = Seq::start(&mut kv, &text(1, 18)).unwrap();
    assert_eq!((again.num_hit, again.num_held), (12, 16));
    // The sequence holds its own slot, and the snapshot until its first step is committed.
    assert_eq!(slot_counts(&kv), (5, 1, 2));
    // The last token is always computed, and a longer prompt starts no later.
    let shorter = Seq::start(&mut kv, &text(1, 12)).unwrap();
    assert_eq!((shorter.num_hit, shorter.num_held), (8, 8));
    let none = Seq::start(&mut kv, &text(1, 8)).unwrap();
    assert_eq!((none.num_hit, none.num_held), (0, 4));
    drop((again, shorter, none));
    kv.tick(0);
    assert_eq!(slot_counts(&kv), (6, 2, 0));
}

/// A step reads the state of the previous one. With two slots it writes the other one, so that it can be repeated.
#[test]
fn steps_write_a_sequence_s_slots_in_turn() {
    for slots_per_seq in [1, 2] {
        let mut kv = cache_with(&[full(16)], Some(slots(4, slots_per_seq)), 4);
        let mut seq = Seq::start(&mut kv, &text(1, 3)).unwrap();
        seq.begin(&mut kv);
        let before = seq.wrote.clone();
        assert_eq!((seq.read, before.len()), (None, 1));
        seq.compute(&mut kv);
        for token in 0..3 {
            let last = *seq.wrote.last().unwrap();
            seq.append(&mut kv, token).unwrap();
            let now = *seq.wrote.last().unwrap();
            assert_eq!(seq.read, Some(last));
            assert_eq!((now.0, now.1 == last.1), (last.0 + 1, slots_per_seq == 1));
        }
        assert_eq!(kv.stats().state_slots_owned, slots_per_seq);
        seq.end(&mut kv);
        assert_eq!(kv.stats().state_slots_owned, 0);
    }
}

/// The slots of a withdrawn step have no owner, and the step may be repeated.
#[test]
fn a_step_is_taken_back() {
    let mut kv = cache_with(&[full(16)], Some(slots(8, 2)), 4);
    let mut seq = Seq::run(&mut kv, &text(1, 6));
    assert_eq!(slot_counts(&kv), (5, 1, 2));
    let start = seq.num_computed;
    seq.tokens.extend([1, 2, 3, 4]);
    let demand = Demand { write: 6..10, reserve: 10, ..Demand::default() };
    let plan = kv.plan(&seq.blocks, PrefixHit::default(), &demand).unwrap();
    kv.commit(plan, &mut seq.blocks, &mut Vec::new()).unwrap();
    seq.begin(&mut kv);
    let wrote = std::mem::take(&mut seq.wrote);
    assert_eq!(slot_counts(&kv), (4, 1, 3));
    kv.take_back_step(&mut seq.blocks, start).unwrap();
    assert_eq!((slot_counts(&kv), seq.blocks.state_at(10)), ((5, 1, 2), None));
    kv.check_owners([&seq.blocks].into_iter()).unwrap();
    seq.compute(&mut kv);
    assert_eq!(seq.wrote, wrote);
    assert_eq!(slot_counts(&kv), (4, 2, 2));
}

/// Snapshots take only what is left, last ones first. The least recently used snapshot is evicted for them.
#[test]
fn snapshots_take_what_nobody_else_needs() {
    let mut kv = hybrid(32, 4);
    let mut first = Seq::start(&mut kv, &text(1, 17)).unwrap();
    compute_with(&mut kv, &mut first, &[4, 8, 12, 16], 1);
    // One slot is the sequence's own, and one was to be left free.
    assert_eq!(slot_counts(&kv), (1, 2, 1));
    let hits = |kv: &mut KvCache, tokens: &[u32]| {
        let mut chain = kv.new_chain(None, SeqExtras::default());
        kv.extend_chain(&mut chain, &Tokens::new(tokens.into()));
        kv.find_prefix(&chain, tokens.len()).num_tokens
    };
    assert_eq!([17, 16, 12].map(|n| hits(&mut kv, &text(1, n))), [16, 12, 0]);
    // A hit counts as a use.
    let mut second = Seq::start(&mut kv, &text(1, 13)).unwrap();
    assert_eq!(second.num_hit, 12);
    assert_eq!(slot_counts(&kv), (0, 1, 3));
    second.compute(&mut kv);
    second.end(&mut kv);
    assert_eq!(slot_counts(&kv), (1, 2, 1));
    let mut third = Seq::start(&mut kv, &text(2, 5)).unwrap();
    compute_with(&mut kv, &mut third, &[4], 0);
    assert_eq!((slot_counts(&kv), kv.stats().state_evictions), ((0, 2, 2), 1));
    assert_eq!([17, 13].map(|n| hits(&mut kv, &text(1, n))), [12, 12]);
    // If all slots are owned, no snapshot is taken, and no sequence is affected.
    let (fourth, mut fifth) = (Seq::run(&mut kv, &text(3, 3)), Seq::start(&mut kv, &text(4, 9)).unwrap());
    compute_with(&mut kv, &mut fifth, &[4, 8], 0);
    assert_eq!(slot_counts(&kv), (0, 0, 4));
    assert!(Seq::start(&mut kv, &text(5, 1)).is_none());
    drop((first, third, fourth, fifth));
    kv.tick(0);
    assert_eq!(slot_counts(&kv), (4, 0, 0));
}

/// Generation leaves its last snapshot, and those that another sequence has used.
#[test]
fn a_rolling_snapshot_replaces_the_one_before() {
    let mut kv = hybrid(32, 8);
    let mut seq = Seq::run(&mut kv, &text(1, 6));
    assert_eq!(slot_counts(&kv), (6, 1, 1));
    let mut generate = |kv: &mut KvCache, n: u32| (0..n).for_each(|i| drop(seq.append(kv, i).unwrap()));
    generate(&mut kv, 2);
    assert_eq!(slot_counts(&kv), (5, 2, 1));
    generate(&mut kv, 4);
    // The prompt's snapshot is not among the rolling ones.
    assert_eq!(slot_counts(&kv), (5, 2, 1));
    let mut next_turn = text(1, 6);
    next_turn.extend([0, 1, 0, 1, 2, 3, 70, 71, 72]);
    let hit = Seq::start(&mut kv, &next_turn).unwrap();
    assert_eq!((hit.num_hit, hit.num_held), (12, 12));
    hit.end(&mut kv);
    generate(&mut kv, 4);
    assert_eq!(slot_counts(&kv), (4, 3, 1));
    generate(&mut kv, 4);
    assert_eq!(slot_counts(&kv), (4, 3, 1));
}

/// Forks begin with one state, which each of them reads once and none writes. It is free when the last has read it.
#[test]
fn forks_share_the_state_that_they_begin_with() {
    for slots_per_seq in [1, 2] {
        let mut kv = cache_with(&[full(32)], Some(slots(12, slots_per_seq)), 4);
        let mut parent = Seq::run(&mut kv, &text(1, 6));
        let (mut one, mut other) = (parent.fork(&mut kv), parent.fork(&mut kv));
        let begin = parent.blocks.state_at(6).unwrap();
        kv.check_owners([&parent.blocks, &one.blocks, &other.blocks].into_iter()).unwrap();
        for seq in [&mut parent, &mut one] {
            seq.append(&mut kv, 7).unwrap();
            assert_eq!(seq.read, Some((6, begin.0)));
            assert!(seq.wrote.iter().all(|(_, slot)| *slot != begin.0));
            seq.append(&mut kv, 8).unwrap();
            assert!(seq.wrote.iter().all(|(_, slot)| *slot != begin.0));
        }
        kv.check_owners([&parent.blocks, &one.blocks, &other.blocks].into_iter()).unwrap();
        let owned = kv.stats().state_slots_owned;
        assert_eq!(owned, 2 * slots_per_seq + 1);
        other.append(&mut kv, 9).unwrap();
        assert_eq!(other.read, Some((6, begin.0)));
        assert_eq!(kv.stats().state_slots_owned, 3 * slots_per_seq);
        drop((parent, one, other));
        kv.tick(0);
        assert_eq!(kv.stats().state_slots_owned, 0);
    }
}

/// The state after the tokens that count becomes the sequence's own, and the slots of the others are free.
#[test]
fn a_sequence_is_cut_back_to_a_state_that_was_kept() {
    for (slots_per_seq, num_right) in [1, 2].into_iter().flat_map(|slots| (0..=3).map(move |right| (slots, right))) {
        let mut kv = cache_with(&[full(32)], Some(slots(16, slots_per_seq)), 4);
        let mut seq = Seq::run(&mut kv, &text(1, 6));
        seq.draft(&mut kv, &[60, 61, 62, 63]).unwrap();
        // The end of a block is among them, which is also a snapshot.
        assert_eq!(kv.stats().state_slots_owned, slots_per_seq + 3 + 1);
        let kept = 7 + num_right;
        let states: Vec<u32> = seq.wrote.iter().filter(|wrote| wrote.0 == kept).map(|wrote| wrote.1).collect();
        seq.keep(&mut kv, kept);
        assert!(states.contains(&seq.blocks.state_at(kept).unwrap().0), "{states:?}");
        assert_eq!((kv.stats().state_slots_owned, seq.blocks.num_kept_states()), (slots_per_seq, 0));
        assert_eq!(kv.stats().state_slots_cached, 1 + usize::from(kept >= 8));
        kv.check_owners([&seq.blocks].into_iter()).unwrap();
        seq.append(&mut kv, 70).unwrap();
        assert!(states.contains(&seq.read.unwrap().1));
        seq.end(&mut kv);
        assert_eq!(kv.stats().state_slots_owned, 0);
    }
    // If there are too few slots, none is taken. The sequence cannot return to a state that was not saved.
    let mut kv = hybrid(32, 3);
    let mut seq = Seq::run(&mut kv, &text(1, 6));
    assert!(seq.draft(&mut kv, &[60, 61, 62, 63]).is_none());
    assert_eq!(slot_counts(&kv), (1, 1, 1));
    seq.draft(&mut kv, &[60, 61, 62]).unwrap();
    seq.tokens.truncate(6);
    seq.settle(&mut kv);
    assert!(matches!(kv.truncate(&mut seq.blocks, 6), Err(Error::Internal { .. })));
}

#[test]
fn a_miss_says_whether_the_state_was_lacking() {
    let mut kv = hybrid(32, 3);
    let ask = |kv: &mut KvCache, tokens: &[u32]| {
        let seq = Seq::start(kv, tokens).unwrap();
        let miss = kv.count_prefix_query(&seq.chain, tokens.len(), seq.num_hit, seq.num_held);
        seq.end(kv);
        miss
    };
    assert_eq!(ask(&mut kv, &text(1, 17)), PrefixMiss::New);
    let mut seq = Seq::start(&mut kv, &text(1, 17)).unwrap();
    compute_with(&mut kv, &mut seq, &[8], 0);
    seq.end(&mut kv);
    assert_eq!(ask(&mut kv, &text(1, 17)), PrefixMiss::NoSnapshot);
    assert_eq!(ask(&mut kv, &text(1, 12)), PrefixMiss::LastBlock);
    assert_eq!(ask(&mut kv, &[&text(1, 8)[..], &text(2, 8)].concat()), PrefixMiss::New);
    // Snapshots of another sequence evict it.
    let mut other = Seq::start(&mut kv, &text(3, 9)).unwrap();
    compute_with(&mut kv, &mut other, &[4, 8], 0);
    assert_eq!(ask(&mut kv, &text(1, 17)), PrefixMiss::Evicted);
    assert_eq!(kv.stats().prefix_cache_misses.no_snapshot, 9);
    other.end(&mut kv);
    assert!(kv.reset_prefix_cache());
    assert_eq!((ask(&mut kv, &text(1, 17)), slot_counts(&kv)), (PrefixMiss::New, (3, 0, 0)));
}

/// A state that another sequence's steps will save is worth waiting for; computed keys and values alone are not.
#[test]
fn only_a_state_is_shared_soon() {
    let kv = hybrid(32, 8);
    let chain = |tokens: &[u32]| {
        let mut chain = kv.new_chain(None, SeqExtras::default());
        kv.extend_chain(&mut chain, &Tokens::new(tokens.into()));
        chain
    };
    let (mine, theirs) = (chain(&text(1, 30)), chain(&[&text(1, 22)[..], &text(2, 20)].concat()));
    let soon = |snapshots: &[usize]| {
        let all: Vec<_> = snapshots.iter().map(|&position| Snapshot { position, is_rolling: false }).collect();
        kv.tokens_shared_soon(&mine, 30, &theirs, 4..42, &all)
    };
    assert_eq!([soon(&[]), soon(&[8]), soon(&[8, 20, 24, 40]), soon(&[24])], [0, 4, 16, 0]);
}

#[test]
fn slots_out_of_range_are_errors() {
    let new = |states| KvCache::new(KvCacheConfig { states: Some(states), ..cache(4).config().clone() });
    let good = slots(2, 1);
    new(good).unwrap();
    for bad in [
        StateConfig { num_slots: 1, ..good },
        StateConfig { slots_per_seq: 2, ..good },
        StateConfig { slots_per_seq: 0, ..good },
        StateConfig { num_slots: usize::MAX, ..good },
        StateConfig { snapshot_interval: 0, ..good },
        StateConfig { snapshot_interval: 6, ..good },
    ] {
        assert!(matches!(new(bad), Err(Error::InvalidRequest { .. })), "{bad:?}");
    }
}
