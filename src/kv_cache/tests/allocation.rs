use super::*;
use crate::Error;

/// K4, K7: at every boundary a sequence holds exactly ceil(n / block_size) blocks.
#[test]
fn blocks_at_every_boundary() {
    let mut kv = cache(16);
    let mut seq = Seq::run(&mut kv, &text(1, 1));
    for n in 2u32..=64 {
        seq.append(&mut kv, n).unwrap();
        assert_eq!(seq.table().len(), n.div_ceil(4) as usize, "{n} tokens");
        assert_eq!(counts(&kv).2, n.div_ceil(4) as usize);
    }
    assert!(seq.append(&mut kv, 0).is_none(), "the pool is full");
    seq.end(&mut kv);
    assert_eq!(counts(&kv), (0, 16, 0));
}

/// K17, K18: an allocation that fails half-way changes nothing.
#[test]
fn test_prefill_not_enough_free_blocks_with_computed_blocks() {
    let mut kv = cache(8);
    let first = Seq::run(&mut kv, &text(1, 12));
    let cached = first.table();
    first.end(&mut kv);
    let holder = Seq::run(&mut kv, &text(2, 12));
    // There are 3 cached and 2 free blocks. The prompt hits 3 and needs 3 more.
    let long: Vec<u32> = text(1, 12).into_iter().chain(text(3, 12)).collect();
    let (map, stats) = (kv.block_map(5), kv.stats());
    assert!(Seq::start(&mut kv, &long).is_none());
    assert_eq!((kv.block_map(5), kv.stats()), (map, stats));
    kv.check_owners([&holder.blocks].into_iter()).unwrap();
    // A demand for one block less fits.
    let fits = Seq::start(&mut kv, &long[..20]).unwrap();
    assert_eq!((fits.num_hit, &fits.table()[..3]), (12, &cached[..]));
}

/// K17: failed allocations do not exhaust the pool.
#[test]
fn capacity_survives_failed_allocations() {
    let mut kv = cache(4);
    for round in 0..1000 {
        assert!(Seq::start(&mut kv, &text(round, 17)).is_none());
        let seq = Seq::start(&mut kv, &text(round, 16)).unwrap();
        assert!(Seq::start(&mut kv, &text(7, 1)).is_none());
        seq.end(&mut kv);
    }
    assert_eq!(counts(&kv), (4, 0, 0));
}

/// A plan is valid only for the cache that it was made for, and cannot be committed after a change.
#[test]
fn stale_plan_is_refused() {
    let mut kv = cache(4);
    let mut blocks = kv.new_sequence();
    let demand = Demand { write: 0..16, reserve: 16, ..Demand::default() };
    let plan = kv.plan(&blocks, PrefixHit::default(), &demand).unwrap();
    let other = Seq::start(&mut kv, &text(1, 4)).unwrap();
    let error = kv.commit(plan, &mut blocks, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Internal { .. }));
    assert!(blocks.is_empty());
    kv.check_owners([&other.blocks].into_iter()).unwrap();
}

#[test]
fn keep_free_is_kept() {
    let kv = cache(4);
    let blocks = kv.new_sequence();
    let is_planned = |kv: &KvCache, blocks: &SeqBlocks, keep_free: &[usize]| {
        kv.plan(blocks, PrefixHit::default(), &Demand { write: 0..12, reserve: 12, keep_free, keep_states: 0..0 })
            .is_some()
    };
    assert!(is_planned(&kv, &blocks, &[1]));
    assert!(!is_planned(&kv, &blocks, &[2]));
    assert!(!is_planned(&kv, &blocks, &[usize::MAX]));
    // Each group has its own limit.
    let kv = cache_of(&[full(4), sliding(4, 8)], 4);
    let blocks = kv.new_sequence();
    assert!(is_planned(&kv, &blocks, &[1, 5]));
    assert!(!is_planned(&kv, &blocks, &[2, 5]));
    assert!(!is_planned(&kv, &blocks, &[1, 6]));
}

/// K17: a full group rejects the allocation, however much the others have, and nothing is taken from those.
#[test]
fn each_group_has_its_own_blocks() {
    let mut kv = cache_of(&[full(8), full(4), sliding(4, 3)], 4);
    let first = Seq::start(&mut kv, &text(1, 8)).unwrap();
    assert_eq!(counts(&kv), (9, 0, 6));
    assert!(kv.has_available(&[6, 2, 1]) && !kv.has_available(&[6, 2, 2]) && !kv.has_available(&[0, 3, 0]));
    // The second group has 2 blocks left, and the window's group 1.
    let before = kv.block_map(0);
    assert!(Seq::start(&mut kv, &text(2, 12)).is_none());
    assert!(Seq::start(&mut kv, &text(2, 8)).is_none());
    assert_eq!(kv.block_map(0), before);
    let second = Seq::start(&mut kv, &text(2, 4)).unwrap();
    kv.check_owners([&first.blocks, &second.blocks].into_iter()).unwrap();
    first.end(&mut kv);
    second.end(&mut kv);
    assert_eq!(counts(&kv), (15, 0, 0));
}

#[test]
fn test_block_id_recycling() {
    let mut kv = cache(8);
    let first = Seq::start(&mut kv, &text(1, 10)).unwrap();
    let mut used = first.table();
    first.end(&mut kv);
    // The blocks were never computed, so they have no content and are taken again before any unused one.
    let second = Seq::start(&mut kv, &text(2, 10)).unwrap();
    let mut again = second.table();
    used.sort_unstable();
    again.sort_unstable();
    assert_eq!(used, again);
}

#[test]
fn test_capacity_limit() {
    let mut kv = cache(4);
    let a = Seq::run(&mut kv, &text(1, 8));
    let b = Seq::run(&mut kv, &text(2, 8));
    assert!(Seq::start(&mut kv, &text(3, 1)).is_none());
    assert_eq!(counts(&kv), (0, 0, 4));
    a.end(&mut kv);
    let c = Seq::start(&mut kv, &text(3, 8)).unwrap();
    assert_eq!(owners(&kv, b.table()[0]), 1, "a live sequence is not evicted");
    drop((b, c));
}

/// K1, K2: dropping any holder of blocks returns them, even while the cache is locked and during a panic.
#[test]
fn every_way_to_go_away_returns_the_blocks() {
    let lock = std::sync::Arc::new(parking_lot::RwLock::new(cache(8)));
    let start = |n| Seq::run(&mut lock.write(), &text(n, 8));

    let (plain, locked, unwound, sent) = (start(1), start(2), start(3), start(4));
    assert_eq!(counts(&lock.read()).2, 8);
    drop(plain);
    {
        let _guard = lock.write();
        drop(locked);
    }
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _held = unwound;
        std::panic::resume_unwind(Box::new("a request fails"));
    }));
    assert!(panicked.is_err());
    std::thread::spawn(move || drop(sent)).join().unwrap();

    lock.write().tick(0);
    assert_eq!(counts(&lock.read()), (0, 8, 0));
    lock.read().check_integrity().unwrap();
}

/// K1: 10,000 sequences leave nothing behind.
#[test]
fn nothing_is_left_of_many_sequences() {
    let mut kv = cache(16);
    for i in 0..10_000 {
        let mut seq = Seq::start(&mut kv, &text(i % 50, 1 + i % 40)).unwrap();
        if i % 3 > 0 {
            seq.compute(&mut kv);
        }
        drop(seq);
        kv.tick(u64::from(i));
    }
    kv.check_integrity().unwrap();
    kv.check_owners([].into_iter()).unwrap();
    assert_eq!(counts(&kv).2, 0);
}

/// The cache may be dropped before the sequences that hold its blocks.
#[test]
fn sequence_outlives_the_cache() {
    let mut kv = cache(4);
    let seq = Seq::run(&mut kv, &text(1, 8));
    drop(kv);
    assert_eq!(seq.table().len(), 2);
}
