//! Groups with pools of different sizes: the fullest one decides, as far as it is used.

use super::harness::{Harness, full, limits, sequence, shares, sliding};
use crate::config::GroupConfig;
use crate::{NewSequence, SchedulerConfig, SeqId};

/// Pools of which one is small, and a window that no sequence of these tests exceeds.
fn one_small(num_blocks: usize) -> [Vec<GroupConfig>; 3] {
    [
        vec![full(100), sliding(64, num_blocks)],
        vec![full(num_blocks), sliding(64, 100)],
        vec![full(100), full(num_blocks), sliding(8, 50)],
    ]
}

/// A new sequence waits while any group lacks blocks for it, whatever the others have left.
#[test]
fn the_fullest_group_decides_on_admission() {
    for groups in one_small(6) {
        let mut h = Harness::with_groups(groups, SchedulerConfig { max_num_batched_tokens: 32, ..limits() });
        // The third would take the last block, which running sequences may need.
        for (id, prompt) in [(1, 7), (2, 11), (3, 4)] {
            h.add(NewSequence { max_tokens: 8, ..sequence(id, prompt) }).unwrap();
        }
        assert_eq!(shares(&h.step()), [(1, 7), (2, 11)]);
        assert_eq!(shares(&h.step()), [(1, 1), (2, 1)]);
        assert!(h.finish(1));
        assert_eq!(shares(&h.step()), [(2, 1), (3, 4)]);
        assert_eq!(h.scheduler.num_preemptions(), 0);
    }
}

/// Each group keeps its own hundredth free, so a small group need not keep a large one's share.
#[test]
fn each_group_keeps_its_own_watermark() {
    let mut h = Harness::with_groups(vec![full(1000), sliding(8, 6)], limits());
    h.add(sequence(1, 4)).unwrap();
    h.add(sequence(2, 4)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 4), (2, 4)]);
}

/// A long prompt needs all its blocks of a full group at once, and in a window's group those of its first chunk.
#[test]
fn a_window_needs_fewer_blocks() {
    let mut h = Harness::with_groups(vec![full(20), sliding(8, 7)], limits());
    h.add(NewSequence { max_tokens: 2, ..sequence(1, 60) }).unwrap();
    for (tokens, held) in [(16, 15 + 2), (16, 15 + 2), (16, 15 + 2), (12, 15 + 2), (1, 16 + 3)] {
        assert_eq!(shares(&h.step()), [(1, tokens)]);
        assert_eq!(h.blocks_owned(), held, "after {tokens} more tokens");
    }
    assert!(h.finish(1));
    assert_eq!(h.blocks_owned(), 0);
    // A pool with one block less than window and step need is rejected at once.
    let mut h = Harness::with_groups(vec![full(20), sliding(8, 6)], limits());
    let error = h.add(NewSequence { max_tokens: 2, ..sequence(1, 60) }).unwrap_err().to_string();
    assert!(error.contains("24 tokens"), "{error}");
}

/// The newest sequence of the lowest priority is preempted for a block of any group, and all sequences finish.
#[test]
fn preemption_for_the_group_that_is_full() {
    for groups in one_small(7) {
        for (priorities, victim) in [([0, 0, 0], 3), ([0, 1, 0], 2), ([2, 1, 0], 1)] {
            let mut h = Harness::with_groups(groups.clone(), limits());
            for (id, priority) in (1..=3).zip(priorities) {
                h.add(NewSequence { priority, ..sequence(id, 5) }).unwrap();
            }
            while h.scheduler.num_preemptions() == 0 {
                h.step();
            }
            let info = h.scheduler.info(SeqId(victim)).unwrap();
            assert_eq!((info.num_preemptions, info.num_computed_tokens, info.num_tokens), (1, 0, 9), "{priorities:?}");
            let mut finished = 0;
            while h.scheduler.has_work() {
                for seq in h.step().seqs {
                    if h.scheduler.info(seq.id).is_some_and(|info| info.num_tokens == 21) {
                        finished += usize::from(h.finish(seq.id.0));
                    }
                }
            }
            assert_eq!((finished, h.blocks_owned()), (3, 0));
        }
    }
}

/// A step scheduled ahead never includes tokens for which a group might lack a block.
#[test]
fn a_step_ahead_needs_blocks_of_every_group() {
    for (num_blocks, is_ahead) in [(3, false), (4, true)] {
        for groups in one_small(num_blocks) {
            let limits = SchedulerConfig { max_model_len: 8, max_num_batched_tokens: 8, ..limits() };
            let mut h = Harness::with_groups(groups, limits);
            h.add(sequence(1, 3)).unwrap();
            h.add(sequence(2, 3)).unwrap();
            let first = h.schedule();
            assert_eq!(shares(&first), [(1, 3), (2, 3)]);
            assert_eq!(!h.schedule().seqs.is_empty(), is_ahead, "{num_blocks} blocks");
            h.commit(&first);
        }
    }
}
