//! Tests of a sequence from arrival to end: tokens, batches, stale steps, and the end in every state.

use super::harness::{Harness, limits, sequence, shares, token_of};
use crate::Error;
use crate::{NewSequence, SchedulerConfig, SeqId, Step};

/// S9, S10: one request alone runs to its end.
#[test]
fn single_request_generates_all_its_tokens() {
    let mut h = Harness::new(32, SchedulerConfig { max_model_len: 128, ..limits() });
    h.add(NewSequence { max_tokens: 64, ..sequence(1, 5) }).unwrap();
    for n in 1..=64 {
        let step = h.step();
        assert_eq!(step.seqs.len(), 1);
        assert_eq!(h.scheduler.info(SeqId(1)).unwrap().num_tokens, 5 + n);
    }
    assert!(h.finish(1));
    assert!(!h.scheduler.has_work());
    assert_eq!(h.blocks_owned(), 0);
}

/// S17: a prompt takes as few steps as the token budget allows.
#[test]
fn prompt_is_computed_in_chunks() {
    let mut h = Harness::new(64, SchedulerConfig { max_num_batched_tokens: 128, max_model_len: 256, ..limits() });
    h.add(NewSequence { max_tokens: 1, ..sequence(1, 250) }).unwrap();
    let steps = [h.step(), h.step()];
    assert_eq!(
        steps.each_ref().map(|step| (step.batch.num_tokens(), step.seqs[0].samples.len())),
        [(128, 0), (122, 1)]
    );
    assert_eq!(steps.each_ref().map(|step| step.batch.logits_indices.clone()), [vec![], vec![121]]);
}

#[test]
fn batch_is_flat() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 3)).unwrap();
    h.step();
    h.add(sequence(2, 6)).unwrap();
    let step = h.schedule();
    let batch = &step.batch;
    assert_eq!(batch.token_ids, [501, 2000, 2001, 2002, 2003, 2004, 2005]);
    assert_eq!(batch.positions, [3, 0, 1, 2, 3, 4, 5]);
    assert_eq!((&batch.cu_seqlens_q[..], &batch.context_lens[..]), (&[0, 1, 7][..], &[4, 6][..]));
    assert_eq!(batch.logits_indices, [0, 6]);
    let group = &batch.groups[0];
    assert_eq!((&group.block_tables[..], &group.cu_blocks[..]), (&[0, 1, 2][..], &[0, 1, 3][..]));
    assert_eq!(group.slot_mapping, [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(batch.block_copies, []);
}

/// S1: a step holds only ids, and each step is taken once, so an old copy changes nothing.
#[test]
fn test_stale_batch_clone_does_not_overwrite_scheduler() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 3)).unwrap();
    let first = h.step();
    let stale = first.clone();
    h.step();
    h.step();
    let before = h.scheduler.info(SeqId(1)).unwrap();
    assert_eq!(before.num_tokens, 6);
    let error = h.give(&stale, &[(SeqId(1), 9)]).unwrap_err();
    assert!(matches!(error, Error::Internal { .. }));
    assert!(h.scheduler.discard(&stale, h.now).is_err());
    assert_eq!(h.scheduler.info(SeqId(1)), Some(before));
    h.scheduler.check_integrity().unwrap();
    let step = h.schedule();
    assert_eq!((step.seqs[0].start, step.batch.token_ids[0]), (5, token_of(SeqId(1))));
}

/// S16: a sequence that ended while its step ran is skipped, even if its id is in use again.
#[test]
fn commit_passes_over_what_has_ended() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 3)).unwrap();
    h.add(sequence(2, 3)).unwrap();
    let step = h.schedule();
    assert!(h.finish(1));
    h.add(sequence(1, 5)).unwrap();
    h.commit(&step);
    let info = h.scheduler.info(SeqId(1)).unwrap();
    assert_eq!((info.num_tokens, info.num_computed_tokens, info.scheduled_at), (5, 0, None));
    assert_eq!(h.scheduler.info(SeqId(2)).unwrap().num_tokens, 4);
}

/// K15: only a sequence that has sampled may get a token.
#[test]
fn token_out_of_place_is_an_error() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 20)).unwrap();
    h.add(NewSequence { max_tokens: 1, ..sequence(2, 2) }).unwrap();
    let chunk = h.schedule();
    assert!(chunk.seqs[0].samples.is_empty());
    let error = h.give(&chunk, &[(SeqId(1), 9)]).unwrap_err();
    assert!(matches!(error, Error::Internal { .. }));
    assert_eq!(h.scheduler.info(SeqId(1)).unwrap().num_tokens, 20);
    h.step();
    // A token beyond max_tokens is an error.
    assert_eq!(h.scheduler.info(SeqId(2)).unwrap().num_tokens, 3);
    let step = h.schedule();
    assert!(h.give(&step, &[(SeqId(2), 9)]).is_err());
    assert_eq!(h.scheduler.info(SeqId(2)).unwrap().num_tokens, 3);
    // An unknown id has ended and gets nothing.
    assert!(h.finish(2));
    let step = h.schedule();
    h.give(&step, &[(SeqId(1), 8), (SeqId(2), 9)]).unwrap();
}

/// K2: the end frees everything at once, in every state.
#[test]
fn end_in_every_state_frees_everything() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_seqs: 2, ..limits() });
    h.add(sequence(1, 4)).unwrap();
    h.add(sequence(2, 30)).unwrap();
    h.add(sequence(3, 4)).unwrap();
    h.step();
    // One decodes, one is half-way through its prompt, and one waits.
    assert_eq!((h.scheduler.num_running(), h.scheduler.num_waiting()), (2, 1));
    for (id, owned) in [(1, 8), (2, 0), (3, 0)] {
        assert!(h.finish(id));
        assert_eq!(h.blocks_owned(), owned, "after {id}");
        assert!(!h.finish(id));
    }
    assert!(!h.scheduler.has_work() && h.schedule().seqs.is_empty());
}

/// K1, K12: thousands of sequences leave no block and no record.
#[test]
fn test_memory_leak() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_seqs: 3, ..limits() });
    for id in 0..5_000u64 {
        h.scheduler.add(NewSequence { priority: id as i32 % 3, ..sequence(id, 1 + id as usize % 30) }, h.now).unwrap();
        h.now += 1;
        let step = h.scheduler.schedule(h.now).unwrap();
        let sampled: Vec<_> = step.seqs.iter().filter(|seq| !seq.samples.is_empty()).map(|seq| (seq.id, 1)).collect();
        h.give(&step, &sampled).unwrap();
        if id >= 4 {
            h.scheduler.finish(SeqId(id - 4), h.now);
        }
    }
    assert_eq!(h.scheduler.num_running() + h.scheduler.num_waiting(), 4);
    (4_996..5_000).for_each(|id| assert!(h.finish(id)));
    assert_eq!(h.blocks_owned(), 0);
    // The tables do not grow with the number of sequences served.
    assert!(h.scheduler.sequences.is_empty() && h.scheduler.sequences.capacity() <= 16);
    assert!(h.scheduler.slots.is_empty() && h.scheduler.slots.capacity() <= 32);
}

/// A block is not reused while a step may still write to it.
#[test]
fn test_finish_defers_free_until_inflight_step_done() {
    let mut h = Harness::new(8, limits());
    h.add(sequence(1, 16)).unwrap();
    let step = h.schedule();
    assert!(h.finish(1));
    assert_eq!(h.blocks_owned(), 4);
    // The next request does not get these blocks.
    h.add(NewSequence { max_tokens: 1, ..sequence(2, 24) }).unwrap();
    assert!(h.schedule().seqs.is_empty());
    h.commit(&step);
    assert_eq!(h.blocks_owned(), 0);
    assert_eq!(shares(&h.step()), [(2, 16)]);
}

#[test]
fn test_abort_mid_prefill_defers_free() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 40)).unwrap();
    let first = h.schedule();
    let second = h.schedule();
    assert_eq!((shares(&first), shares(&second)), (vec![(1, 16)], vec![(1, 16)]));
    assert!(h.finish(1));
    h.commit(&first);
    assert_eq!(h.blocks_owned(), 10, "the second step still writes");
    h.commit(&second);
    assert_eq!(h.blocks_owned(), 0);
}

/// A failed step ends only its own sequences.
#[test]
fn failed_step_ends_its_sequences() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_seqs: 1, ..limits() });
    h.add(sequence(1, 4)).unwrap();
    h.add(sequence(2, 4)).unwrap();
    let step = h.schedule();
    h.scheduler.discard(&step, h.now).unwrap();
    h.scheduler.check_integrity().unwrap();
    assert_eq!((h.blocks_owned(), h.scheduler.info(SeqId(1))), (0, None));
    assert_eq!(shares(&h.step()), [(2, 4)]);
    h.finish(2);
    assert_eq!(h.kv_cache.read().stats().blocks_cached, 1, "what failed is not cached");
}

#[test]
fn steps_are_committed_in_order() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 40)).unwrap();
    let (first, second) = (h.schedule(), h.schedule());
    assert!(h.give(&second, &[]).is_err());
    assert!(h.scheduler.discard(&first, h.now).is_err());
    h.commit(&first);
    h.commit(&second);
    assert_eq!(h.scheduler.info(SeqId(1)).unwrap().num_computed_tokens, 32);
}

#[test]
fn test_sequence_lifetime_tracking() {
    let mut h = Harness::new(16, limits());
    h.now = 1_000;
    h.add(sequence(1, 20)).unwrap();
    let info = h.scheduler.info(SeqId(1)).unwrap();
    assert_eq!((info.created_at, info.last_access, info.access_count, info.scheduled_at), (1_000, 1_000, 0, None));
    for (n, (tokens, computed)) in [(20, 16), (21, 20), (22, 21)].into_iter().enumerate() {
        h.step();
        let info = h.scheduler.info(SeqId(1)).unwrap();
        assert_eq!((info.created_at, info.scheduled_at), (1_000, Some(1_010)));
        assert_eq!((info.last_access, info.access_count), (1_010 + 10 * n as u64, n as u64 + 1));
        assert_eq!((info.num_tokens, info.num_computed_tokens), (tokens, computed));
    }
    h.finish(1);
    assert_eq!(h.scheduler.info(SeqId(1)), None);
}

/// However the scheduler is dropped, the cache has all its blocks again.
#[test]
fn dropped_scheduler_returns_all_blocks() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 20)).unwrap();
    h.schedule();
    h.add(sequence(2, 4)).unwrap();
    h.finish(1);
    let kv = std::sync::Arc::clone(&h.kv_cache);
    assert_eq!(kv.read().stats().blocks_owned, 5);
    drop(h);
    assert_eq!(kv.read().stats().blocks_owned, 0);
    kv.read().check_integrity().unwrap();
}

/// S19: ids and steps are counted in 64 bits.
#[test]
fn ids_of_64_bits() {
    let mut h = Harness::new(16, limits());
    for id in [u64::MAX, u64::from(u32::MAX), u64::from(u32::MAX) + 1] {
        h.add(NewSequence { id: SeqId(id), ..sequence(1, 2) }).unwrap();
    }
    assert_eq!(h.schedule().seqs.len(), 3);
}

/// A step scheduled before another's tokens are known waits for them, and drops sequences that ended with them.
#[test]
fn a_step_ahead_is_completed_before_it_runs() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 3)).unwrap();
    h.add(sequence(2, 3)).unwrap();
    h.add(NewSequence { max_tokens: 1, ..sequence(3, 3) }).unwrap();
    let first = h.schedule();
    let ahead = h.schedule();
    // The third sequence ends with its token and needs no further step.
    assert_eq!(shares(&ahead), [(1, 1), (2, 1)]);
    assert!(h.scheduler.complete(ahead.clone(), h.now).is_err(), "the tokens are not there yet");
    h.commit(&first);
    h.finish(3);
    h.finish(1);
    let owned = h.blocks_owned();
    let ahead = h.scheduler.complete(ahead, h.now).unwrap();
    assert_eq!(h.blocks_owned(), owned - 1, "who ended is not waited for");
    assert_eq!(shares(&ahead), [(2, 1)]);
    assert_eq!((&ahead.batch.token_ids[..], &ahead.batch.positions[..]), (&[token_of(SeqId(2))][..], &[3][..]));
    assert_eq!((ahead.seqs[0].logits.clone(), &ahead.batch.logits_indices[..]), (0..1, &[0][..]));
    h.commit(&ahead);
    let ahead = [h.schedule(), h.schedule()];
    h.commit(&ahead[0]);
    h.finish(2);
    let [_, ahead] = ahead;
    assert_eq!(h.scheduler.complete(ahead, h.now).unwrap(), Step::default());
    assert_eq!(h.blocks_owned(), 0);
    h.scheduler.check_integrity().unwrap();
}

/// A10: the tokens of a withdrawn step are computed later, into the same blocks.
#[test]
fn a_step_that_is_withdrawn_comes_again() {
    let mut h = Harness::new(16, limits());
    h.add(sequence(1, 3)).unwrap();
    let first = h.schedule();
    h.add(sequence(2, 5)).unwrap();
    let ahead = h.schedule();
    assert_eq!(shares(&ahead), [(1, 1), (2, 5)]);
    assert!(h.scheduler.withdraw(&first).is_err(), "not the newest");
    h.scheduler.withdraw(&ahead).unwrap();
    assert!(h.scheduler.withdraw(&ahead).is_err());
    h.scheduler.check_integrity().unwrap();
    assert_eq!((h.blocks_owned(), h.scheduler.num_preemptions()), (3, 0));
    h.commit(&first);
    assert_eq!(shares(&h.step()), [(1, 1), (2, 5)]);
}

/// A missing token is detected, even if other sequences of the step have ended.
#[test]
fn a_step_ahead_without_its_token_is_an_error() {
    for ended in [None, Some(1)] {
        let mut h = Harness::new(16, limits());
        h.add(sequence(1, 3)).unwrap();
        h.add(sequence(2, 3)).unwrap();
        let (first, ahead) = (h.schedule(), h.schedule());
        h.give(&first, &[(SeqId(1), token_of(SeqId(1)))]).unwrap();
        if let Some(id) = ended {
            assert!(h.scheduler.finish(SeqId(id), h.now));
        }
        let error = h.scheduler.complete(ahead, h.now).unwrap_err();
        assert!(error.to_string().contains("SeqId(2) was not given a token"), "{error}");
    }
}
