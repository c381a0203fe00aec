use super::*;

/// Returns the number of recorded durations.
fn total(histogram: &Histogram) -> u64 {
    histogram.counts.iter().sum()
}

#[test]
fn test_histogram() {
    let mut histogram = Histogram::default();
    for micros in [0, 1_000, 1_001, 10_000_000, 3_600_000_000, 3_600_000_001, u64::MAX] {
        histogram.record(micros);
    }
    assert_eq!(histogram.counts, [2, 1, 0, 0, 1, 0, 0, 1, 2]);
    assert_eq!((total(&histogram), histogram.sum), (7, u64::MAX));
}

/// Lifetime counts from the allocation, and idle time from the last use, each to the eviction.
#[test]
fn test_lifetime_and_idle_time() {
    let mut kv = cache(1);
    kv.tick(1_000);
    let seq = Seq::run(&mut kv, &text(1, 4));
    drop(seq);
    kv.tick(51_000);
    kv.tick(2_051_000);
    let taker = Seq::start(&mut kv, &text(2, 1)).unwrap();
    let residency = kv.stats().residency;
    assert_eq!((total(&residency.lifetime), residency.lifetime.sum), (1, 2_050_000));
    assert_eq!((total(&residency.idle_before_evict), residency.idle_before_evict.sum), (1, 2_000_000));
    assert_eq!(total(&residency.reuse_gap), 0);
    // Taking a block without content is no eviction.
    drop(taker);
    kv.tick(3_000_000);
    drop(Seq::start(&mut kv, &text(3, 1)).unwrap());
    assert_eq!(total(&kv.stats().residency.lifetime), 1);
    assert_eq!(kv.stats().evictions, 1);
}

#[test]
fn test_reuse_gaps() {
    let mut kv = cache(4);
    kv.tick(100);
    let first = Seq::run(&mut kv, &text(1, 4));
    let prompt = [text(1, 4), vec![5]].concat();
    kv.tick(600);
    drop(Seq::start(&mut kv, &prompt).unwrap());
    kv.tick(1_000);
    drop(first);
    kv.tick(5_000);
    drop(Seq::start(&mut kv, &prompt).unwrap());
    // The gaps are 500 from the allocation, then from the release (500 + 4,500 would be the sum if time were lost).
    let gap = kv.stats().residency.reuse_gap;
    assert_eq!((total(&gap), gap.sum), (2, 500));
}

/// A20: without a prefix cache, no lookups are counted.
#[test]
fn queries_are_counted_where_there_is_a_cache() {
    for enable_prefix_caching in [true, false] {
        let mut kv = KvCache::new(KvCacheConfig { enable_prefix_caching, ..cache(4).config().clone() }).unwrap();
        let chain = kv.new_chain(None, SeqExtras::default());
        let miss = kv.count_prefix_query(&chain, 10, 0, 0);
        assert_eq!(miss == PrefixMiss::Disabled, !enable_prefix_caching);
        assert_eq!(kv.stats().prefix_cache_queries, if enable_prefix_caching { 10 } else { 0 });
    }
}

/// A clock that jumps back causes no harm.
#[test]
fn clock_never_goes_back() {
    let mut kv = cache(1);
    kv.tick(1_000_000);
    drop(Seq::run(&mut kv, &text(1, 4)));
    kv.tick(5);
    drop(Seq::start(&mut kv, &text(2, 1)).unwrap());
    assert_eq!(kv.stats().residency.lifetime.sum, 0);
    assert!(kv.block_map(0).iter().all(|block| block.idle_micros == 0));
}

#[test]
fn block_map_tells_each_block() {
    let mut kv = cache(4);
    kv.tick(1_000);
    let mut live = Seq::run(&mut kv, &text(1, 6));
    let fork = live.fork(&mut kv);
    drop(Seq::run(&mut kv, &text(2, 4)));
    kv.tick(2_000);
    let info = |state, owners, hashed, idle_micros| BlockInfo { state, owners, hashed, idle_micros };
    let expected = [
        info(BlockState::Owned, 2, true, 0),
        info(BlockState::Owned, 2, false, 0),
        info(BlockState::Cached, 0, true, 7_000),
        info(BlockState::Free, 0, false, 9_000),
    ];
    assert_eq!(kv.block_map(9_000), expected);
    drop((live, fork));
}
