//! Tests of preemption when no block is left.

use super::harness::{Harness, limits, sequence, shares};
use crate::{NewSequence, SchedulerConfig, SeqId};

/// The newest of the lowest priority is preempted, is first in line again, and loses none of its tokens.
#[test]
fn test_priority_scheduling_preemption_victim_selection() {
    for (priorities, victim) in [([0, 0, 0], 3), ([0, 1, 0], 2), ([2, 1, 0], 1), ([1, 1, 0], 2)] {
        let mut h = Harness::new(7, limits());
        for (id, priority) in (1..=3).zip(priorities) {
            // They have 2 blocks each, and one is left. All need a third in the same step.
            h.add(NewSequence { priority, ..sequence(id, 5) }).unwrap();
        }
        while h.scheduler.num_preemptions() == 0 {
            h.step();
        }
        assert_eq!((h.scheduler.num_running(), h.scheduler.num_waiting()), (2, 1), "{priorities:?}");
        let info = h.scheduler.info(SeqId(victim)).unwrap();
        assert_eq!((info.num_preemptions, info.num_computed_tokens, info.num_tokens), (1, 0, 9), "{priorities:?}");
    }
}

/// A preempted sequence recomputes its prompt and generated tokens, and samples only after the last of them. It
/// precedes those that arrived later.
#[test]
fn test_preempt_during_execution() {
    let mut h = Harness::new(7, limits());
    for id in 1..=3 {
        h.add(sequence(id, 5)).unwrap();
    }
    while h.scheduler.num_preemptions() == 0 {
        h.step();
    }
    h.add(sequence(4, 1)).unwrap();
    h.finish(1);
    let step = h.schedule();
    let again = &step.seqs[1];
    assert_eq!((again.id, h.scheduler.num_waiting()), (SeqId(3), 1), "the newcomer waits behind it");
    // The first block is still cached, and the generated tokens are input now.
    assert_eq!((again.start, again.num_tokens, again.logits.len(), again.samples.len()), (4, 5, 1, 1));
    assert_eq!(step.batch.token_ids[step.batch.tokens_of(1)], [3004, 503, 503, 503, 503]);
    assert_eq!(h.scheduler.info(SeqId(3)).unwrap().num_cached_tokens, 0, "its own tokens are no cache hits of a user");
    h.commit(&step);
    assert_eq!(h.scheduler.info(SeqId(3)).unwrap().num_tokens, 10);
}

#[test]
fn preempted_prefix_cache_hit_is_counted_once() {
    let mut h = Harness::new(7, limits());
    for id in 1..=3 {
        h.add(sequence(id, 5)).unwrap();
    }
    while h.scheduler.num_preemptions() == 0 {
        h.step();
    }
    h.finish(1);
    h.step();
    let stats = h.kv_cache.read().stats();
    assert_eq!((stats.prefix_cache_queries, stats.prefix_cache_hits), (15, 0));
}

/// Sequences that cannot run together run one after the other, and all finish.
#[test]
fn sequences_that_do_not_fit_together_all_finish() {
    let mut h = Harness::new(6, limits());
    for id in 1..=4 {
        h.add(NewSequence { max_tokens: 15, ..sequence(id, 6) }).unwrap();
    }
    let mut finished = Vec::new();
    for _ in 0..500 {
        let step = h.step();
        for seq in step.seqs.iter().filter(|seq| !seq.samples.is_empty()) {
            if h.scheduler.info(seq.id).is_some_and(|info| info.num_tokens == 21) {
                finished.push(seq.id.0);
                h.finish(seq.id.0);
            }
        }
    }
    assert_eq!(finished, [1, 2, 3, 4]);
    assert!(h.scheduler.num_preemptions() > 0);
    assert_eq!(h.blocks_owned(), 0);
}

/// Blocks that a step in flight writes are not taken from their sequence.
#[test]
fn sequence_in_flight_is_not_preempted() {
    let mut h = Harness::new(4, SchedulerConfig { max_num_batched_tokens: 8, ..limits() });
    h.add(NewSequence { max_tokens: 3, ..sequence(1, 6) }).unwrap();
    h.add(NewSequence { max_tokens: 3, ..sequence(2, 1) }).unwrap();
    h.step();
    let step = h.schedule();
    assert_eq!(shares(&step), [(1, 1), (2, 1)]);
    // Both sequences are in flight and wait for their tokens, so nothing can be scheduled or preempted.
    assert!(h.schedule().seqs.is_empty());
    assert_eq!(h.scheduler.num_preemptions(), 0);
    h.commit(&step);
}

/// The logits of a prompt are returned once per position, even with a preemption between its chunks.
#[test]
fn prompt_logits_over_a_preemption() {
    let mut h = Harness::new(8, SchedulerConfig { max_num_batched_tokens: 4, ..limits() });
    h.add(NewSequence { max_tokens: 17, ..sequence(1, 3) }).unwrap();
    h.step();
    h.add(NewSequence { all_logits: true, max_tokens: 1, ..sequence(2, 24) }).unwrap();
    let mut rows = 0;
    let mut saw_repeat = false;
    while h.scheduler.has_work() {
        let step = h.step();
        for seq in &step.seqs {
            if seq.id == SeqId(2) {
                saw_repeat |= seq.logits.len() < seq.num_tokens;
                rows += seq.logits.len();
                assert!(seq.logits.is_empty() || seq.start + seq.num_tokens == rows);
            }
            let is_done =
                h.scheduler.info(seq.id).is_some_and(|info| info.num_tokens == if seq.id.0 == 1 { 20 } else { 25 });
            if is_done {
                h.finish(seq.id.0);
            }
        }
    }
    assert!(h.scheduler.num_preemptions() > 0 && saw_repeat, "the case did not come up");
    assert_eq!(rows, 24);
}

/// A prompt with all logits requested takes no prefix-cache hits, which would omit logits. Others can hit its blocks.
#[test]
fn all_logits_takes_no_hits() {
    let mut h = Harness::new(16, limits());
    for (id, all_logits, start) in [(1, true, 0), (2, true, 0), (3, false, 8)] {
        let prompt = sequence(9, 10).prompt;
        h.add(NewSequence { all_logits, prompt, ..sequence(id, 1) }).unwrap();
        let step = h.step();
        assert_eq!((step.seqs[0].start, step.seqs[0].logits.len()), (start, if all_logits { 10 } else { 1 }));
        assert_eq!(h.scheduler.info(SeqId(id)).unwrap().num_cached_tokens, start);
        h.finish(id);
    }
    let stats = h.kv_cache.read().stats();
    assert_eq!((stats.prefix_cache_queries, stats.prefix_cache_hits), (10, 8));
}
