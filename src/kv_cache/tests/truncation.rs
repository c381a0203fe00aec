//! Tests that blocks written for drafts are freed when the drafts are rejected.

use super::*;
use crate::Error;

/// Blocks after the remaining tokens are freed first in line, and were never hashed.
#[test]
fn rejected_blocks_go_back_without_a_name() {
    let mut kv = cache_of(&[full(8), sliding(6, 6)], 4);
    let mut seq = Seq::run(&mut kv, &text(1, 6));
    // Positions 6..14 are written, and 6 and 7 stay.
    seq.draft(&mut kv, &[60, 61, 62, 63, 64, 65, 66, 67]).unwrap();
    assert_eq!(counts(&kv), (6, 0, 8));
    seq.keep(&mut kv, 8);
    assert_eq!((seq.blocks.table(0).len(), seq.blocks.table(1).len()), (2, 2));
    assert_eq!(counts(&kv), (10, 0, 4));
    kv.check_owners([&seq.blocks].into_iter()).unwrap();
    // Accepted tokens can be hit, rejected ones cannot.
    let drafted: Vec<u32> = text(1, 6).into_iter().chain(60..68).collect();
    seq.end(&mut kv);
    let again = Seq::start(&mut kv, &drafted).unwrap();
    assert_eq!(again.num_hit, 8);
}

/// A sequence continues where it was cut, in the block that it kept.
#[test]
fn a_block_that_is_cut_in_the_middle_is_filled_again() {
    let mut kv = cache(4);
    let mut seq = Seq::run(&mut kv, &text(1, 5));
    let table = seq.table();
    assert_eq!(seq.draft(&mut kv, &[9, 9]).unwrap(), []);
    seq.keep(&mut kv, 5);
    assert_eq!(seq.table(), table);
    for token in 5..8 {
        assert_eq!(seq.append(&mut kv, token).unwrap(), []);
    }
    assert_eq!((seq.table(), seq.blocks.num_named), (table, 2));
}

/// K22: drafts are written to a copy of a shared block. When they are rejected, the other sequence still has its own.
#[test]
fn drafts_never_write_into_a_shared_block() {
    let mut kv = cache(8);
    let mut parent = Seq::run(&mut kv, &text(1, 6));
    let child = parent.fork(&mut kv);
    let copies = parent.draft(&mut kv, &[7, 8, 9]).unwrap();
    parent.keep(&mut kv, 6);
    assert_eq!(copies, [BlockCopy { group: 0, src: child.table()[1], dst: parent.table()[1] }]);
    assert_eq!((parent.table()[0], parent.table().len()), (child.table()[0], 2));
    assert_eq!((owners(&kv, parent.table()[0]), owners(&kv, child.table()[1])), (2, 1));
    kv.check_owners([&parent.blocks, &child.blocks].into_iter()).unwrap();
}

/// Content that others may have found is not removed, since a sequence would lose tokens.
#[test]
fn named_blocks_are_not_cut_off() {
    let mut kv = cache(4);
    let mut seq = Seq::run(&mut kv, &text(1, 9));
    let before = (seq.table(), kv.block_map(0));
    assert!(matches!(kv.truncate(&mut seq.blocks, 7), Err(Error::Internal { .. })));
    assert_eq!((seq.table(), kv.block_map(0)), before);
    kv.truncate(&mut seq.blocks, 8).unwrap();
    assert_eq!((seq.table().len(), counts(&kv)), (2, (2, 0, 2)));
    kv.check_integrity().unwrap();
}
