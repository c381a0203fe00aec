//! Recurrent states: which slots a step reads and writes, which snapshots it takes, and what comes of both.

use super::harness::{Harness, limits, sequence, shares, token_of};
use crate::batch::{NO_STATE, StateWrite};
use crate::config::StateConfig;
use crate::kv_cache::PrefixMiss;
use crate::scheduler::{NewSequence, SchedulerConfig, SeqId, Step};

fn slots(num_slots: usize, slots_per_seq: usize) -> StateConfig {
    StateConfig { num_slots, slots_per_seq, snapshot_interval: 8 }
}

/// The slot that sequence `s` of a step reads, and numbers of tokens with the slots that it writes then.
fn states(step: &Step, s: usize) -> (u32, Vec<(u32, u32)>) {
    let states = &step.batch.states;
    let writes = &states.writes[states.cu_writes[s] as usize..states.cu_writes[s + 1] as usize];
    (states.reads[s], writes.iter().map(|StateWrite { num_tokens, slot }| (*num_tokens, *slot)).collect())
}

fn tokens(writes: &[(u32, u32)]) -> Vec<u32> {
    writes.iter().map(|(tokens, _)| *tokens).collect()
}

/// (free, cached, owned)
fn slot_counts(h: &Harness) -> (usize, usize, usize) {
    let stats = h.kv_cache.read().stats();
    (stats.state_slots_free, stats.state_slots_cached, stats.state_slots_owned)
}

/// A prompt leaves its state at every interval, at the end of its last block, and at its end; an answer at the end of
/// each block, of which the last stays.
#[test]
fn snapshots_are_taken_at_the_ends_of_blocks() {
    let mut h = Harness::with_states(16, slots(12, 1), limits());
    h.add(sequence(1, 23)).unwrap();
    let step = h.step();
    let (read, writes) = states(&step, 0);
    assert_eq!((read, tokens(&writes)), (NO_STATE, vec![8, 16, 16]));
    let own = writes[2].1;
    let step = h.step();
    // The rest of the prompt ends behind the end of its last block.
    let (read, writes) = states(&step, 0);
    assert_eq!((read, tokens(&writes), writes[1]), (own, vec![4, 7], (7, own)));
    assert_eq!(slot_counts(&h), (8, 3, 1));
    let step = h.step();
    let (read, writes) = states(&step, 0);
    assert_eq!((read, tokens(&writes), writes[1].1), (own, vec![1, 1], own));
    assert_eq!(states(&h.step(), 0), (own, vec![(1, own)]));
    (0..7).for_each(|_| drop(h.step()));
    assert_eq!(slot_counts(&h), (7, 4, 1));
    assert!(h.finish(1));
    assert_eq!(slot_counts(&h), (8, 4, 0));
}

/// A turn of a conversation begins at the end of the last block of the one before.
#[test]
fn the_next_turn_begins_with_the_last_state() {
    let mut h = Harness::with_states(32, slots(8, 2), SchedulerConfig { max_num_batched_tokens: 32, ..limits() });
    h.add(sequence(1, 14)).unwrap();
    (0..8).for_each(|_| drop(h.step()));
    assert!(h.finish(1));
    let mut prompt: Vec<u32> = (0..14).map(|i| 1000 + i).collect();
    prompt.extend([token_of(SeqId(1)); 8]);
    prompt.extend(0..5);
    h.add(NewSequence { prompt: prompt.clone().into(), ..sequence(2, 1) }).unwrap();
    let step = h.step();
    // 21 tokens were computed, 20 of them are whole blocks.
    assert_eq!((shares(&step), h.scheduler.info(SeqId(2)).unwrap().num_cached_tokens), (vec![(2, 7)], 20));
    let (read, writes) = states(&step, 0);
    assert!(read != NO_STATE && writes.iter().all(|(_, slot)| *slot != read), "{step:?}");
    assert!(h.finish(2));
    assert_eq!(slot_counts(&h).2, 0);
}

/// The third prompt with a beginning finds the state after it, wherever it ends.
#[test]
fn a_state_is_kept_where_prompts_part() {
    let wide = SchedulerConfig { max_num_batched_tokens: 64, ..limits() };
    let mut h = Harness::with_states(64, StateConfig { snapshot_interval: 64, ..slots(16, 1) }, wide);
    let prompt = |id: u64| -> Vec<u32> { (0..20).chain((0..20).map(|i| id as u32 * 100 + i)).collect() };
    let mut ask = |id: u64| {
        h.add(NewSequence { prompt: prompt(id).into(), ..sequence(id, 1) }).unwrap();
        let step = h.step();
        let (info, writes) = (h.scheduler.info(SeqId(id)).unwrap(), tokens(&states(&step, 0).1));
        assert!(h.finish(id));
        (info.num_cached_tokens, info.prefix_miss.unwrap(), writes)
    };
    assert_eq!(ask(1), (0, PrefixMiss::New, vec![36, 40, 40]));
    assert_eq!(ask(2), (0, PrefixMiss::NoSnapshot, vec![20, 36, 40, 40]));
    assert_eq!(ask(3), (20, PrefixMiss::New, vec![16, 20, 20]));
}

/// S9: a preempted sequence gives its slots back and begins again with the last state that was kept of it.
#[test]
fn a_preempted_sequence_resumes_from_a_snapshot() {
    let mut h = Harness::with_states(9, slots(12, 1), SchedulerConfig { max_num_seqs: 2, ..limits() });
    h.add(sequence(1, 12)).unwrap();
    h.step();
    h.add(sequence(2, 15)).unwrap();
    while h.scheduler.num_preemptions() == 0 {
        h.step();
    }
    assert_eq!((h.scheduler.num_running(), slot_counts(&h).2), (1, 1));
    assert!(h.finish(1));
    let step = h.step();
    let seq = h.scheduler.info(SeqId(2)).unwrap();
    // It had generated some tokens; what is left to compute begins at the end of a block.
    assert_eq!((step.seqs[0].start % 4, step.seqs[0].start + step.seqs[0].num_tokens), (0, seq.num_tokens - 1));
    assert!(step.seqs[0].start >= 12 && states(&step, 0).0 != NO_STATE, "{step:?}");
    assert!(h.finish(2));
    assert_eq!(slot_counts(&h).2, 0);
}

/// K22: each fork begins with the state of the parent's prompt, which no step writes while one is to read it.
#[test]
fn forks_begin_with_the_state_of_the_prompt() {
    for slots_per_seq in [1, 2] {
        let mut h = Harness::with_states(32, slots(16, slots_per_seq), limits());
        h.add(NewSequence { will_fork: true, ..sequence(1, 6) }).unwrap();
        let begin = states(&h.step(), 0).1.last().unwrap().1;
        (2..4).for_each(|child| h.scheduler.fork(SeqId(1), SeqId(child), 70, h.now).unwrap());
        h.scheduler.check_integrity().unwrap();
        // Its slots were the parent's, which now gets others as the children do.
        let step = h.step();
        assert_eq!(step.seqs.len(), 3);
        for s in 0..3 {
            let (read, writes) = states(&step, s);
            assert!(read == begin && writes.iter().all(|(_, slot)| *slot != begin), "{step:?}");
        }
        assert_eq!(slot_counts(&h).2, 3 * slots_per_seq);
        (1..4).for_each(|id| assert!(h.finish(id)));
        assert_eq!(slot_counts(&h).2, 0);
    }
}

/// A sequence waits while there is no slot for it, and snapshots leave it the one that comes free.
#[test]
fn sequences_wait_for_slots() {
    let mut h = Harness::with_states(64, slots(3, 1), limits());
    (1..5).for_each(|id| h.add(sequence(id, 3)).unwrap());
    assert_eq!(shares(&h.step()), [(1, 3), (2, 3), (3, 3)]);
    assert_eq!((slot_counts(&h), h.scheduler.num_waiting()), ((0, 0, 3), 1));
    assert!(h.finish(2));
    // One slot is free, and those that run reach the end of a block in the same step.
    let step = h.step();
    assert_eq!(step.seqs.last().unwrap().id, SeqId(4));
    assert_eq!(slot_counts(&h).2, 3);
    [1, 3, 4].into_iter().for_each(|id| assert!(h.finish(id)));
    assert_eq!(slot_counts(&h).2, 0);
}

/// A10: a step that stopped half-way is repeated where its sequences have two slots. With one slot their states are
/// lost, and they begin with the last that was kept.
#[test]
fn a_step_that_stopped_comes_again() {
    for slots_per_seq in [1, 2] {
        let mut h = Harness::with_states(32, slots(12, slots_per_seq), limits());
        h.add(sequence(1, 6)).unwrap();
        h.step();
        h.step();
        let stopped = h.schedule();
        h.scheduler.withdraw(&stopped).unwrap();
        h.scheduler.check_integrity().unwrap();
        let again = h.schedule();
        if slots_per_seq == 2 {
            assert_eq!((&again.batch, &again.seqs), (&stopped.batch, &stopped.seqs));
            let (read, writes) = states(&again, 0);
            assert!(writes.iter().all(|(_, slot)| *slot != read), "{again:?}");
        } else {
            assert_eq!((again.seqs[0].start, again.seqs[0].num_tokens), (4, 4));
        }
        h.commit(&again);
        // One that never ran has changed nothing.
        let (running, ahead) = (h.schedule(), h.schedule());
        h.scheduler.withdraw(&ahead).unwrap();
        assert_eq!(h.scheduler.num_waiting(), 0);
        h.commit(&running);
        assert_eq!((&h.schedule().batch.states, ahead.seqs[0].start), (&ahead.batch.states, 9));
        assert!(h.finish(1));
    }
}

/// An end in a step in flight leaves the slots that it writes alone until it is done.
#[test]
fn slots_of_a_step_in_flight_stay() {
    let mut h = Harness::with_states(32, slots(12, 2), limits());
    h.add(sequence(1, 6)).unwrap();
    let step = h.schedule();
    assert!(h.finish(1));
    assert_eq!(slot_counts(&h).2, 3);
    h.give(&step, &[]).unwrap();
    assert_eq!(slot_counts(&h), (12, 0, 0));
    h.add(sequence(2, 6)).unwrap();
    let step = h.schedule();
    h.scheduler.discard(&step, h.now).unwrap();
    assert_eq!(slot_counts(&h), (12, 0, 0));
}

/// A state cannot be cut back, so no guess may go into it.
#[test]
fn drafts_are_refused() {
    let mut h = Harness::with_states(32, slots(12, 1), limits());
    h.add(sequence(1, 6)).unwrap();
    let step = h.schedule();
    let error = h.accept(&step, &[(1, &[7], &[8, 9])]).unwrap_err();
    assert!(error.to_string().contains("cannot be cut back"), "{error}");
    assert!(h.finish(1));
    assert_eq!(slot_counts(&h).2, 0);
}
