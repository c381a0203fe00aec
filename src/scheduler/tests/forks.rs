//! Several sequences of one prompt.

use std::sync::Arc;

use super::harness::{Harness, limits, sequence, shares, token_of};
use crate::Error;
use crate::batch::BlockCopy;
use crate::{NewSequence, SchedulerConfig, SeqId};

/// K22: children share the prompt's blocks, and the first writer of the shared block copies it.
#[test]
fn fork_shares_and_copies_on_write() {
    let mut h = Harness::new(16, limits());
    h.add(NewSequence { will_fork: true, ..sequence(1, 6) }).unwrap();
    h.step();
    h.scheduler.fork(SeqId(1), SeqId(2), 70, h.now).unwrap();
    h.scheduler.fork(SeqId(1), SeqId(3), 71, h.now).unwrap();
    h.scheduler.check_integrity().unwrap();
    assert_eq!(h.blocks_owned(), 2);
    let step = h.schedule();
    assert_eq!(step.batch.token_ids, [501, 70, 71]);
    assert_eq!(step.batch.positions, [6, 6, 6]);
    let copy = |dst| BlockCopy { group: 0, src: 1, dst };
    assert_eq!(step.batch.block_copies, [copy(2), copy(3)]);
    assert_eq!(step.batch.groups[0].block_tables, [0, 2, 0, 3, 0, 1]);
    h.commit(&step);
    (1..=3).for_each(|id| assert!(h.finish(id)));
    assert_eq!(h.blocks_owned(), 0);
}

#[test]
fn fork_out_of_place_is_an_error() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_seqs: 2, ..limits() });
    let fork = |h: &mut Harness, child| h.scheduler.fork(SeqId(1), SeqId(child), 7, h.now);
    fork(&mut h, 2).unwrap_err();
    h.add(NewSequence { will_fork: true, ..sequence(1, 6) }).unwrap();
    fork(&mut h, 2).unwrap_err();
    h.step();
    fork(&mut h, 1).unwrap_err();
    fork(&mut h, 2).unwrap();
    fork(&mut h, 2).unwrap_err();
    h.step();
    h.finish(2);
    fork(&mut h, 2).unwrap_err();
    h.scheduler.check_integrity().unwrap();
}

/// A6: a request with many sequences starts with the first free slot, and takes the others as they become free. Later
/// requests do not wait for more than that.
#[test]
fn forks_start_as_places_come_free() {
    let mut h = Harness::new(64, limits());
    h.add(sequence(1, 2)).unwrap();
    h.add(NewSequence { will_fork: true, ..sequence(2, 6) }).unwrap();
    h.add(sequence(3, 2)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 2), (2, 6), (3, 2)]);
    // One of 5 children gets a slot. The others wait before sequences that arrived later.
    h.add(sequence(4, 2)).unwrap();
    (20..25).for_each(|child| h.scheduler.fork(SeqId(2), SeqId(child), child as u32, h.now).unwrap());
    assert_eq!((h.scheduler.num_running(), h.scheduler.num_waiting()), (4, 5));
    assert_eq!(shares(&h.step()), [(1, 1), (2, 1), (20, 1), (3, 1)]);
    h.finish(1);
    // The child starts with the prompt's full block, and with the token that it was given.
    let step = h.step();
    assert_eq!(shares(&step), [(2, 1), (20, 1), (3, 1), (21, 3)]);
    assert_eq!(step.batch.token_ids[3..], [2004, 2005, 21]);
    for (id, next) in [(3, 22), (2, 23), (20, 24), (21, 4)] {
        h.finish(id);
        assert_eq!(h.step().seqs.last().unwrap().id, SeqId(next));
    }
    (22..25).chain([4]).for_each(|id| assert!(h.finish(id)));
    assert_eq!((h.blocks_owned(), h.scheduler.num_preemptions()), (0, 0));
}

/// A6: more sequences than can run at once are served one after the other.
#[test]
fn more_forks_than_places() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_seqs: 1, ..limits() });
    h.add(NewSequence { will_fork: true, max_tokens: 2, ..sequence(1, 6) }).unwrap();
    h.step();
    (2..5).for_each(|child| h.scheduler.fork(SeqId(1), SeqId(child), 7, h.now).unwrap());
    for id in 1..5 {
        let step = h.step();
        assert_eq!((step.seqs.len(), step.seqs[0].id, step.seqs[0].samples.len()), (1, SeqId(id), 1));
        assert!(h.finish(id));
    }
    assert!(!h.scheduler.has_work());
}

/// A6: a waiting child can end like any other. It counts neither as a new sequence in the queue nor as a lookup.
#[test]
fn a_waiting_fork_can_end() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_seqs: 1, max_queue_size: 1, ..limits() });
    h.add(NewSequence { will_fork: true, ..sequence(1, 6) }).unwrap();
    h.step();
    (2..4).for_each(|child| h.scheduler.fork(SeqId(1), SeqId(child), 7, h.now).unwrap());
    h.add(sequence(9, 2)).unwrap();
    assert!(matches!(h.add(sequence(10, 2)), Err(Error::QueueFull { waiting: 1, limit: 1 })));
    assert!(h.finish(2) && h.finish(1));
    assert_eq!(h.step().seqs[0].id, SeqId(3));
    assert!(h.finish(3));
    assert_eq!(shares(&h.step()), [(9, 2)]);
    assert!(h.finish(9));
    assert_eq!(h.kv_cache.read().stats().prefix_cache_queries, 8);
}

/// A4: preemptions before the fork are the parent's, so the counts of all sequences add up.
#[test]
fn preemptions_are_counted_once() {
    let mut h = Harness::new(9, SchedulerConfig { max_num_seqs: 2, max_num_batched_tokens: 2, ..limits() });
    h.add(NewSequence { max_tokens: 12, ..sequence(1, 4) }).unwrap();
    h.step();
    h.step();
    // The prompt has 6 blocks, and the first sequence takes its fourth block while the prompt is computed.
    h.add(NewSequence { will_fork: true, max_tokens: 5, ..sequence(2, 24) }).unwrap();
    while !h.step().seqs.iter().any(|seq| seq.id == SeqId(2) && !seq.samples.is_empty()) {
        if h.scheduler.info(SeqId(1)).is_some_and(|info| info.num_tokens == 16) {
            h.finish(1);
        }
    }
    assert_eq!(h.scheduler.num_preemptions(), 1);
    (20..23).for_each(|child| h.scheduler.fork(SeqId(2), SeqId(child), 7, h.now).unwrap());
    let counts = [2, 20, 21, 22].map(|id| h.scheduler.info(SeqId(id)).unwrap().num_preemptions);
    assert_eq!(counts, [1, 0, 0, 0]);
}

/// The caller's prompt is stored once in any case, and dropped with the last sequence.
#[test]
fn sequences_share_the_prompt_that_they_were_given() {
    let mut h = Harness::new(16, limits());
    let prompt: Arc<[u32]> = (0..6).collect();
    h.add(NewSequence { will_fork: true, prompt: Arc::clone(&prompt), ..sequence(1, 6) }).unwrap();
    assert_eq!(Arc::strong_count(&prompt), 2);
    h.step();
    h.scheduler.fork(SeqId(1), SeqId(2), 70, h.now).unwrap();
    assert_eq!(Arc::strong_count(&prompt), 3);
    assert_eq!(h.step().batch.token_ids, [token_of(SeqId(1)), 70]);
    assert!(h.finish(1) && h.finish(2));
    assert_eq!(Arc::strong_count(&prompt), 1);
}
