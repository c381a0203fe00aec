use super::*;
use crate::Error;

fn new(block_size: usize, groups: Vec<GroupConfig>) -> Result<KvCache> {
    KvCache::new(KvCacheConfig { block_size, groups, states: None, enable_prefix_caching: true, hash_key: [0; 32] })
}

/// K9: sizes whose product overflows, or does not fit a slot, are errors before anything is allocated.
#[test]
fn sizes_out_of_range_are_errors() {
    let bad = [
        (0, vec![full(8)]),
        (16, vec![full(0)]),
        (usize::MAX, vec![full(2)]),
        (2, vec![full(usize::MAX)]),
        (usize::MAX, vec![full(usize::MAX)]),
        (1 << 16, vec![full(1 << 16)]),
        (1, vec![full(u32::MAX as usize)]),
        (16, vec![]),
        (16, vec![full(8), sliding(0, 8)]),
        // Each group's pool is checked.
        (16, vec![full(8), full(0)]),
        (16, vec![full(8), sliding(4, usize::MAX)]),
    ];
    for (block_size, groups) in bad {
        let error = new(block_size, groups.clone()).unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { .. }), "{block_size} {groups:?}: {error}");
    }
    new(16, vec![full(8)]).unwrap();
    let kv = new(16, vec![full(8), full(3), sliding(4, 5)]).unwrap();
    assert_eq!((kv.stats().blocks_total, kv.block_map(0).len()), (16, 16));
    assert_eq!(kv.groups.iter().map(|group| group.pool.num_available()).collect::<Vec<_>>(), [8, 3, 5]);
}

/// K24: for every block size, position p is in entry p / size of the table, and the table has as many entries as
/// needed.
#[test]
fn position_to_block_for_every_block_size() {
    for block_size in 1..=64 {
        for n in [1, block_size - 1, block_size, block_size + 1, 3 * block_size - 1, 3 * block_size].map(|n| n.max(1)) {
            let mut kv = cache_of(&[full(8)], block_size);
            let seq = Seq::start(&mut kv, &text(1, n as u32)).unwrap();
            assert_eq!(seq.table().len(), n.div_ceil(block_size), "{n} tokens in blocks of {block_size}");
        }
    }
}

/// K8: an id outside the pool is a typed error, not a panic.
#[test]
fn unknown_block_is_an_error() {
    let mut pool = pool::Pool::new(2);
    for id in [BlockId(2), BlockId::NULL] {
        for error in [
            pool.get(id).map(drop).unwrap_err(),
            pool.touch(id, 0).unwrap_err(),
            pool.add_owner(id).unwrap_err(),
            pool.release(id, 0).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Internal { .. }), "{error}");
        }
    }
}

/// K5: releasing a block without an owner is an error and changes nothing.
#[test]
fn release_without_owner_is_an_error() {
    let mut pool = pool::Pool::new(2);
    let id = pool.allocate(0).unwrap().0;
    pool.release(id, 0).unwrap();
    assert!(matches!(pool.release(id, 0), Err(Error::Internal { .. })));
    assert_eq!((pool.num_available(), pool.get(id).unwrap().refs), (2, 0));
}

/// `check_integrity` and `check_owners` detect broken states.
#[test]
fn integrity_checks_find_what_is_broken() {
    let mut kv = cache(4);
    let seq = Seq::run(&mut kv, &text(1, 8));
    kv.check_owners([&seq.blocks].into_iter()).unwrap();
    kv.check_owners([].into_iter()).unwrap_err();
    let block = seq.blocks.table(0)[0];

    kv.groups[0].pool.blocks[block.index()].refs = 2;
    kv.check_integrity().unwrap();
    kv.check_owners([&seq.blocks].into_iter()).unwrap_err();

    kv.groups[0].pool.blocks[block.index()].refs = 0;
    kv.check_integrity().unwrap_err();
    kv.groups[0].pool.blocks[block.index()].refs = 1;
    kv.check_integrity().unwrap();

    let name = kv.groups[0].pool.blocks[block.index()].hash.take();
    kv.check_integrity().unwrap_err();
    kv.groups[0].pool.blocks[block.index()].hash = name;
    kv.groups[0].pool.num_cached += 1;
    kv.check_integrity().unwrap_err();
}

/// An invalid count that a drop finds is not lost: the next check reports it.
#[test]
fn fault_of_a_drop_is_reported() {
    let mut kv = cache(4);
    let seq = Seq::run(&mut kv, &text(1, 4));
    let block = seq.blocks.table(0)[0];
    kv.groups[0].pool.release(block, 0).unwrap();
    drop(seq);
    kv.tick(0);
    assert!(matches!(kv.check_integrity(), Err(Error::Internal { .. })));
}
