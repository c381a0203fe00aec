use super::*;

/// K20: the end of one sequence does not affect what others hold.
#[test]
fn test_block_sharing_and_unreference() {
    let mut kv = cache(8);
    let mut a = Seq::run(&mut kv, &text(1, 6));
    let mut b = a.fork(&mut kv);
    let c = b.fork(&mut kv);
    assert_eq!(a.table(), c.table());
    assert_eq!([owners(&kv, 0), owners(&kv, 1), counts(&kv).2 as u32], [3, 3, 2]);
    b.end(&mut kv);
    assert_eq!([owners(&kv, 0), counts(&kv).2 as u32], [2, 2]);
    a.end(&mut kv);
    assert_eq!([owners(&kv, 0), owners(&kv, 1)], [1, 1]);
    c.end(&mut kv);
    assert_eq!(counts(&kv), (7, 1, 0));
}

/// K22: the first writers of a shared block get copies of it, and the last one writes in place.
#[test]
fn write_into_a_shared_block_copies_it() {
    let mut kv = cache(8);
    let mut a = Seq::run(&mut kv, &text(1, 6));
    let (mut b, mut c) = (a.fork(&mut kv), a.fork(&mut kv));
    let shared = a.table()[1];

    let copies = b.append(&mut kv, 70).unwrap();
    assert_eq!(copies, [BlockCopy { group: 0, src: shared, dst: b.table()[1] }]);
    assert_ne!(b.table()[1], shared);
    assert_eq!(b.table()[0], a.table()[0], "the full block stays shared");
    let copies = a.append(&mut kv, 71).unwrap();
    assert_eq!(copies, [BlockCopy { group: 0, src: shared, dst: a.table()[1] }]);
    assert_eq!(c.append(&mut kv, 72).unwrap(), [], "it is the only owner now");
    assert_eq!(c.table()[1], shared);
    // There is no second copy.
    assert_eq!(b.append(&mut kv, 73).unwrap(), []);
    kv.check_owners([&a.blocks, &b.blocks, &c.blocks].into_iter()).unwrap();
    // The three differ only in their second block.
    assert_eq!(a.chain.hashes()[0], b.chain.hashes()[0]);
    a.append(&mut kv, 75).unwrap();
    assert_ne!(a.chain.hashes()[1], b.chain.hashes()[1]);
}

/// Full blocks are never written again, so a fork at a block boundary copies nothing.
#[test]
fn fork_at_a_block_boundary_copies_nothing() {
    let mut kv = cache(8);
    let mut a = Seq::run(&mut kv, &text(1, 8));
    let mut b = a.fork(&mut kv);
    assert_eq!((a.append(&mut kv, 1).unwrap(), b.append(&mut kv, 2).unwrap()), (vec![], vec![]));
    assert_eq!(a.table()[..2], b.table()[..2]);
    assert_ne!(a.table()[2], b.table()[2]);
}

/// K17: if there is no block for the copy, nothing changes.
#[test]
fn copy_without_a_block_changes_nothing() {
    let mut kv = cache(2);
    let mut a = Seq::run(&mut kv, &text(1, 6));
    let mut b = a.fork(&mut kv);
    let map = kv.block_map(0);
    assert!(b.append(&mut kv, 1).is_none());
    assert_eq!(kv.block_map(0), map);
    b.end(&mut kv);
    assert_eq!(a.append(&mut kv, 1).unwrap(), []);
}
