//! Steps that newcomers do not wait for.

use super::harness::{Harness, from, limits, shares};
use crate::{BesideDecodes, NewSequence, SchedulerConfig};

/// A sequence with more than one token.
const LONG: u64 = 90;

/// Returns a harness whose step is full of prompts of the client "many", which has used its credit.
fn crowded(limits: SchedulerConfig) -> Harness {
    let mut h = Harness::new(256, SchedulerConfig { max_queue_size: 1000, ..limits });
    (0..40).for_each(|id| h.add(from("many", id, 16)).unwrap());
    (0..4).for_each(|_| drop(h.run()));
    h
}

#[test]
fn a_step_gives_way_to_newcomers_alone() {
    let mut h = crowded(limits());
    let step = h.schedule();
    let yields = h.scheduler.yields(&step).unwrap();
    let to = [(0, "one"), (0, "many"), (1, "one"), (1, "many"), (-1, "many")];
    assert_eq!(to.map(|(priority, client)| yields.to(priority, Some(client))), [true, false, false, false, true]);
    assert!(yields.to(0, None), "those without a client are one of their own");
    h.commit(&step);
    h.add(from("one", 100, 5)).unwrap();
    let step = h.schedule();
    assert_eq!(shares(&step), [(100, 5)]);
    assert_eq!(h.scheduler.yields(&step), None);
    h.commit(&step);
}

/// There are no newcomers if no client has used its credit.
#[test]
fn a_first_step_gives_way_to_nobody() {
    let mut h = Harness::new(64, limits());
    h.add(from("many", 1, 16)).unwrap();
    let step = h.schedule();
    assert_eq!(h.scheduler.yields(&step), None);
    h.commit(&step);
}

/// A withdrawn step is not charged, but no client gains credit by it.
#[test]
fn a_step_that_is_taken_back_leaves_no_credit() {
    let mut h = crowded(SchedulerConfig { max_num_batched_tokens: 48, ..limits() });
    for id in 100..110 {
        let step = h.schedule();
        assert!(shares(&step).len() > 1, "{:?}", shares(&step));
        let yields = h.scheduler.yields(&step).unwrap();
        assert!(yields.to(0, Some("one")) && !yields.to(0, Some("many")));
        h.scheduler.withdraw(&step).unwrap();
        h.add(from("one", id, 5)).unwrap();
        assert_eq!(shares(&h.run()), [(id, 5)]);
    }
}

/// Prompts of clients without credit get few tokens of a step, as long as a newcomer may return.
#[test]
fn prompts_are_short_while_newcomers_come() {
    let mut h = crowded(SchedulerConfig { max_prefill_beside_newcomers: 6, ..limits() });
    h.add(NewSequence { max_tokens: 40, priority: -1, ..from("many", LONG, 2) }).unwrap();
    h.run();
    h.now += 60_000_000;
    assert_eq!(h.run().batch.num_tokens(), 16, "nobody came yet");
    h.add(from("one", 100, 9)).unwrap();
    assert_eq!(shares(&h.run()), [(LONG, 1), (100, 9)]);
    for _ in 0..5 {
        let shares = shares(&h.run());
        // The last token of a prompt, if only that is left, runs like a decode.
        let of_prompts: usize = shares.iter().map(|(_, tokens)| tokens).filter(|tokens| **tokens > 1).sum();
        assert!(shares[0] == (LONG, 1) && (4..=6).contains(&of_prompts), "{shares:?}");
    }
    h.now += 60_000_000;
    assert_eq!(h.run().batch.num_tokens(), 16);
}

/// Prompts of one client get as many tokens beside decodes of another one as fit in a time, by the last step's time.
#[test]
fn steps_beside_decodes_of_others_take_a_time() {
    let beside_decodes = Some(BesideDecodes { step_micros: 1000, min_prefill: 3 });
    let mut h = Harness::new(256, SchedulerConfig { beside_decodes, ..limits() });
    let run = |h: &mut Harness, micros: u64| {
        let step = h.schedule();
        h.now += micros;
        h.commit(&step);
        shares(&step)
    };
    h.add(NewSequence { max_tokens: 40, ..from("one", LONG, 2) }).unwrap();
    assert_eq!(run(&mut h, 10), [(LONG, 2)]);
    for id in [1, 2] {
        h.add(NewSequence { max_tokens: 20, ..from("many", id, 40) }).unwrap();
    }
    // The last step with prompts had two tokens in 10 microseconds.
    assert_eq!(run(&mut h, 2000), [(LONG, 1), (1, 15)]);
    // 16 tokens took twice the time, then 8 take it.
    assert_eq!(run(&mut h, 1000), [(LONG, 1), (1, 7)]);
    assert_eq!(run(&mut h, 100_000), [(LONG, 1), (1, 7)]);
    // However slow a step is, prompts advance.
    assert_eq!(run(&mut h, 1), [(LONG, 1), (1, 3)]);
    assert_eq!(run(&mut h, 2000), [(LONG, 1), (1, 8), (2, 7)]);
    // A client's own prompts are not held back for its decodes.
    h.finish(LONG);
    assert_eq!(run(&mut h, 2000), [(1, 1), (2, 15)]);
}
