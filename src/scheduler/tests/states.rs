//! Recurrent states: the slots that a step reads and writes, its snapshots, and their effects.

use super::harness::{Harness, limits, sequence, shares, token_of};
use crate::batch::{NO_STATE, StateWrite};
use crate::config::StateConfig;
use crate::kv_cache::PrefixMiss;
use crate::{NewSequence, SchedulerConfig, SeqId, Step};

fn slots(num_slots: usize, slots_per_seq: usize) -> StateConfig {
    StateConfig { num_slots, slots_per_seq, snapshot_interval: 8 }
}

/// Returns the slot that sequence `s` of a step reads, and the slots that it writes with their numbers of tokens.
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

/// A prompt saves its state at every interval, at the end of its last block, and at its end. Generation saves one at
/// the end of each block, of which the last stays.
#[test]
fn snapshots_are_taken_at_the_ends_of_blocks() {
    let mut h = Harness::with_states(16, slots(12, 1), limits());
    h.add(sequence(1, 23)).unwrap();
    let step = h.step();
    let (read, writes) = states(&step, 0);
    assert_eq!((read, tokens(&writes)), (NO_STATE, vec![8, 16, 16]));
    let own = writes[2].1;
    let step = h.step();
    // The rest of the prompt ends after the end of its last block.
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

/// A turn of a conversation starts at the end of the last block of the previous one.
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
    // The previous turn computed 21 tokens, 20 of them in whole blocks.
    assert_eq!((shares(&step), h.scheduler.info(SeqId(2)).unwrap().num_cached_tokens), (vec![(2, 7)], 20));
    let (read, writes) = states(&step, 0);
    assert!(read != NO_STATE && writes.iter().all(|(_, slot)| *slot != read), "{step:?}");
    assert!(h.finish(2));
    assert_eq!(slot_counts(&h).2, 0);
}

/// The third prompt with a common prefix finds the state after the prefix, wherever that ends.
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

/// S9: a preempted sequence releases its slots and restarts from its last saved state.
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
    // It had generated some tokens. The remaining ones start at the end of a block.
    assert_eq!((step.seqs[0].start % 4, step.seqs[0].start + step.seqs[0].num_tokens), (0, seq.num_tokens - 1));
    assert!(step.seqs[0].start >= 12 && states(&step, 0).0 != NO_STATE, "{step:?}");
    assert!(h.finish(2));
    assert_eq!(slot_counts(&h).2, 0);
}

/// K22: each fork begins with the state of the parent's prompt, which no step writes before all have read it.
#[test]
fn forks_begin_with_the_state_of_the_prompt() {
    for slots_per_seq in [1, 2] {
        let mut h = Harness::with_states(32, slots(16, slots_per_seq), limits());
        h.add(NewSequence { will_fork: true, ..sequence(1, 6) }).unwrap();
        let begin = states(&h.step(), 0).1.last().unwrap().1;
        (2..4).for_each(|child| h.scheduler.fork(SeqId(1), SeqId(child), 70, h.now).unwrap());
        h.scheduler.check_integrity().unwrap();
        // Its slots were the parent's, which now gets others like the children.
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

/// A sequence waits while there is no slot for it, and snapshots leave it the one that becomes free.
#[test]
fn sequences_wait_for_slots() {
    let mut h = Harness::with_states(64, slots(3, 1), limits());
    (1..5).for_each(|id| h.add(sequence(id, 3)).unwrap());
    assert_eq!(shares(&h.step()), [(1, 3), (2, 3), (3, 3)]);
    assert_eq!((slot_counts(&h), h.scheduler.num_waiting()), ((0, 0, 3), 1));
    assert!(h.finish(2));
    // One slot is free, and the running sequences reach the end of a block in the same step.
    let step = h.step();
    assert_eq!(step.seqs.last().unwrap().id, SeqId(4));
    assert_eq!(slot_counts(&h).2, 3);
    [1, 3, 4].into_iter().for_each(|id| assert!(h.finish(id)));
    assert_eq!(slot_counts(&h).2, 0);
}

/// A10: an interrupted step is repeated if its sequences have two slots. With one slot their states are lost, and they
/// start from the last saved one.
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
        // A step that never ran has changed nothing.
        let (running, ahead) = (h.schedule(), h.schedule());
        h.scheduler.withdraw(&ahead).unwrap();
        assert_eq!(h.scheduler.num_waiting(), 0);
        h.commit(&running);
        assert_eq!((&h.schedule().batch.states, ahead.seqs[0].start), (&ahead.batch.states, 9));
        assert!(h.finish(1));
    }
}

/// If a sequence ends during a step in flight, the slots that the step writes stay owned until it is done.
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

/// Returns a harness with sequence 1, and its step, which computes a token and these drafts.
fn drafted(states: StateConfig, drafts: &[u32]) -> (Harness, Step) {
    let mut h = Harness::with_states(32, states, limits());
    h.add(sequence(1, 6)).unwrap();
    let step = h.schedule();
    h.accept(&step, &[(1, &[50], drafts)]).unwrap();
    let step = h.schedule();
    (h, step)
}

/// The state before each draft is saved. The one after the accepted drafts becomes the sequence's own; the others are
/// released.
#[test]
fn the_state_behind_the_last_right_draft_stays() {
    for (slots_per_seq, num_right) in [1, 2].into_iter().flat_map(|slots| (0..=4).map(move |right| (slots, right))) {
        let (mut h, step) = drafted(slots(16, slots_per_seq), &[7, 8, 9, 10]);
        // The step has positions 6 to 10. The second draft fills a block, whose end is a snapshot.
        let (read, writes) = states(&step, 0);
        assert_eq!((shares(&step), tokens(&writes)), (vec![(1, 5)], vec![1, 2, 2, 3, 4, 5]));
        assert_eq!(slot_counts(&h), (16 - slots_per_seq - 5 - 1, 1, slots_per_seq + 5));
        let right: Vec<u32> = [7, 8, 9, 10][..num_right].iter().copied().chain([99]).collect();
        h.accept(&step, &[(1, &right, &[])]).unwrap();
        let num_snapshots = 1 + usize::from(num_right >= 1);
        assert_eq!(slot_counts(&h), (16 - slots_per_seq - num_snapshots, num_snapshots, slots_per_seq));
        let next = h.schedule();
        let (begun_with, next_writes) = states(&next, 0);
        assert_eq!(next.seqs[0].start, 7 + num_right);
        let kept = writes.iter().filter(|(tokens, _)| *tokens as usize == 1 + num_right);
        assert!(kept.clone().any(|(_, slot)| *slot == begun_with), "{num_right}: {writes:?}, {begun_with}");
        let last = next_writes.last().unwrap().1;
        // Two slots alternate, and a single one is never left if all drafts were right.
        let has_stayed = slots_per_seq == 2 || num_right == 4;
        assert_eq!((last == begun_with, last == read), (slots_per_seq == 1, has_stayed));
        h.commit(&next);
        assert!(h.finish(1));
        assert_eq!(slot_counts(&h).2, 0);
    }
}

/// Drafts take slots that no sequence needs, and those of snapshots. No sequence waits or is preempted for them.
#[test]
fn drafts_take_the_slots_that_are_left() {
    let drafts = [7, 8, 9, 10];
    let (h, step) = drafted(slots(4, 1), &drafts);
    // One slot was a snapshot's, and none is left for the next snapshot.
    assert_eq!((shares(&step), tokens(&states(&step, 0).1)), (vec![(1, 4)], vec![1, 2, 3, 4]));
    assert_eq!(slot_counts(&h), (0, 0, 4));
    // A new sequence's slot takes precedence.
    let mut h = Harness::with_states(32, slots(5, 1), SchedulerConfig { max_num_batched_tokens: 24, ..limits() });
    [1, 2].into_iter().for_each(|id| h.add(sequence(id, 6)).unwrap());
    let step = h.schedule();
    h.accept(&step, &[(1, &[50], &drafts), (2, &[60], &drafts)]).unwrap();
    h.add(sequence(3, 18)).unwrap();
    let step = h.schedule();
    assert_eq!((shares(&step), slot_counts(&h).2), (vec![(1, 3), (2, 1), (3, 18)], 5));
    assert_eq!(h.scheduler.num_preemptions(), 0);
}

/// A10, K2: the slots of drafts are released when their step is withdrawn or discarded, and when the sequence ends
/// meanwhile.
#[test]
fn slots_of_drafts_go_back() {
    for slots_per_seq in [1, 2] {
        let (mut h, step) = drafted(slots(16, slots_per_seq), &[7, 8, 9]);
        h.scheduler.withdraw(&step).unwrap();
        h.scheduler.check_integrity().unwrap();
        assert_eq!(slot_counts(&h).2, if slots_per_seq == 2 { 2 } else { 0 });
        let again = h.schedule();
        match slots_per_seq {
            2 => {
                let batches = (&again.batch.token_ids, &step.batch.token_ids);
                assert_eq!((batches.0, &again.seqs), (batches.1, &step.seqs));
                assert_eq!(tokens(&states(&again, 0).1), tokens(&states(&step, 0).1));
            }
            // Its state was overwritten, so it starts over and has lost its drafts.
            _ => assert_eq!((again.seqs[0].start, again.seqs[0].num_tokens), (4, 3)),
        }
        assert!(h.finish(1));
        h.give(&again, &[]).unwrap();
        assert_eq!(slot_counts(&h).2, 0);
        let (mut h, step) = drafted(slots(16, slots_per_seq), &[7, 8, 9]);
        h.scheduler.discard(&step, h.now).unwrap();
        assert_eq!(slot_counts(&h).2, 0);
    }
}

/// K22: a fork's first step reads the prompt's state, and saves the states before its drafts in its own slots.
#[test]
fn drafts_of_forks() {
    for slots_per_seq in [1, 2] {
        let mut h = Harness::with_states(32, slots(24, slots_per_seq), limits());
        h.add(NewSequence { will_fork: true, ..sequence(1, 6) }).unwrap();
        let step = h.schedule();
        let begin = states(&step, 0).1.last().unwrap().1;
        h.accept(&step, &[(1, &[50], &[7, 8])]).unwrap();
        h.scheduler.fork(SeqId(1), SeqId(2), 51, h.now).unwrap();
        let step = h.schedule();
        assert_eq!(shares(&step), [(1, 3), (2, 1)]);
        let (read, writes) = states(&step, 0);
        assert!(read == begin && writes.iter().all(|(_, slot)| *slot != begin), "{step:?}");
        assert_eq!(states(&step, 1).0, begin);
        h.accept(&step, &[(1, &[7, 9], &[]), (2, &[52], &[3])]).unwrap();
        assert_eq!(slot_counts(&h).2, 2 * slots_per_seq);
        let step = h.schedule();
        assert_eq!((shares(&step), step.seqs[0].start), (vec![(1, 1), (2, 2)], 8));
        h.accept(&step, &[(1, &[10], &[]), (2, &[3, 4], &[])]).unwrap();
        [1, 2].into_iter().for_each(|id| assert!(h.finish(id)));
        assert_eq!(slot_counts(&h).2, 0);
    }
}
