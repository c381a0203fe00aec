use super::*;
use crate::Error;

fn new(block_size: usize, num_blocks: usize, groups: Vec<GroupKind>) -> Result<KvCache> {
    KvCache::new(KvCacheConfig { block_size, num_blocks, groups, enable_prefix_caching: true, hash_key: [0; 32] })
}

/// K9: sizes whose product overflows, or does not fit a slot, are errors, before anything is allocated.
#[test]
fn sizes_out_of_range_are_errors() {
    let full = || vec![GroupKind::Full];
    let bad = [
        (0, 8, full()),
        (16, 0, full()),
        (usize::MAX, 2, full()),
        (2, usize::MAX, full()),
        (usize::MAX, usize::MAX, full()),
        (1 << 16, 1 << 16, full()),
        (1, u32::MAX as usize, full()),
        (16, 8, vec![]),
        (16, 8, vec![GroupKind::Full, GroupKind::Sliding { window: 0 }]),
    ];
    for (block_size, num_blocks, groups) in bad {
        let error = new(block_size, num_blocks, groups).unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { .. }), "{block_size} {num_blocks}: {error}");
    }
    new(16, 8, full()).unwrap();
}

/// K24: for every block size, position p is in entry p / size of the table, and there are as many entries as needed.
#[test]
fn position_to_block_for_every_block_size() {
    for block_size in 1..=64 {
        for n in [1, block_size - 1, block_size, block_size + 1, 3 * block_size - 1, 3 * block_size].map(|n| n.max(1)) {
            let mut kv = cache_of(&[GroupKind::Full], block_size, 8);
            let seq = Seq::start(&mut kv, &text(1, n as u32)).unwrap();
            assert_eq!(seq.table().len(), n.div_ceil(block_size), "{n} tokens in blocks of {block_size}");
        }
    }
}

/// K8: an id that is not of the pool is a typed error, not a panic.
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

/// K5: to release a block that has no owner is an error and changes nothing.
#[test]
fn release_without_owner_is_an_error() {
    let mut pool = pool::Pool::new(2);
    let id = pool.allocate(0).unwrap();
    pool.release(id, 0).unwrap();
    assert!(matches!(pool.release(id, 0), Err(Error::Internal { .. })));
    assert_eq!((pool.num_available(), pool.get(id).unwrap().refs), (2, 0));
}

/// `check_integrity` and `check_owners` do find broken states.
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

/// A release that met a broken count is not lost: the next check reports it.
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
