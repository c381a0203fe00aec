//! Shares of clients.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::ProptestConfig;
use proptest::proptest;

use super::harness::{Harness, from, limits, sequence, shares};
use super::sim::{Request, Sim, SimConfig};
use crate::batch::GroupKind;
use crate::config::GroupConfig;
use crate::{NewSequence, SchedulerConfig, SeqId, Step, WaitingReason};

fn waiting(h: &Harness) -> Vec<(u64, WaitingReason)> {
    h.scheduler.waiting().into_iter().map(|(id, reason)| (id.0, reason)).collect()
}

fn long_queue() -> SchedulerConfig {
    SchedulerConfig { max_queue_size: 1000, ..limits() }
}

#[test]
fn a_newcomer_is_next_after_one_clients_many_prompts() {
    let mut h = Harness::new(64, long_queue());
    (0..20).for_each(|id| h.add(from("many", id, 16)).unwrap());
    assert_eq!(shares(&h.run()), [(0, 16)]);
    h.add(from("one", 100, 16)).unwrap();
    let next: Vec<_> = (0..2).map(|_| shares(&h.run())[0].0).collect();
    assert!(next.contains(&100), "{next:?}");
    assert_eq!(shares(&h.run()), [(2, 16)]);
}

/// Two steps of 16 tokens are a client's credit. The newcomer uses them, and then both get equal shares.
#[test]
fn a_long_prompt_under_way_shares_the_steps() {
    let mut h = Harness::new(256, SchedulerConfig { max_model_len: 400, ..long_queue() });
    h.add(from("a", 1, 300)).unwrap();
    for _ in 0..6 {
        assert_eq!(shares(&h.step()), [(1, 16)]);
    }
    h.add(from("b", 2, 300)).unwrap();
    let order: Vec<u64> = (0..12).map(|_| shares(&h.step())[0].0).collect();
    assert_eq!(order[..2], [2, 2]);
    let of = |id| order[2..].iter().filter(|other| **other == id).count();
    assert_eq!((of(1), of(2)), (5, 5), "{order:?}");
}

/// A step with the short prompt of an occasional client is as short as that prompt, however many prompts wait.
#[test]
fn a_newcomers_step_is_short() {
    let mut h = Harness::new(256, long_queue());
    (0..40).for_each(|id| h.add(from("many", id, 16)).unwrap());
    (0..4).for_each(|_| assert_eq!(h.run().batch.num_tokens(), 16));
    h.add(from("one", 100, 5)).unwrap();
    assert_eq!(shares(&h.run()), [(100, 5)]);
    assert_eq!(h.run().batch.num_tokens(), 16);
    // A client that always asks uses up its credit within two steps' tokens, and then both get equal shares.
    let mut got = BTreeMap::new();
    for id in 101..161 {
        h.add(from("one", id, 5)).unwrap();
        for (id, tokens) in shares(&h.run()) {
            *got.entry(id < 100).or_insert(0) += tokens;
        }
    }
    let (one, many) = (got[&false] as i64, got[&true] as i64);
    assert!((0..=32 + 16).contains(&(one - many)), "{one} {many}");
}

/// Decodes of clients that always ask pause for a newcomer's prompt. Decodes of a more urgent priority do not.
#[test]
fn answers_make_way_for_a_newcomer() {
    let mut h = Harness::new(256, long_queue());
    let endless = |client, id| NewSequence { max_tokens: 60, ..from(client, id, 4) };
    h.add(NewSequence { priority: -1, ..endless("urgent", 1) }).unwrap();
    h.add(endless("many", 2)).unwrap();
    h.add(from("many", 3, 60)).unwrap();
    (0..3).for_each(|_| assert!(shares(&h.step()).len() > 1));
    h.add(from("one", 100, 5)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 1), (100, 5)]);
    h.finish(100);
    assert_eq!(shares(&h.step())[..2], [(1, 1), (2, 1)]);
}

/// Cached prompts cost nothing, so their client continues until its computed tokens match those of others.
#[test]
fn cached_tokens_are_not_charged() {
    let mut h = Harness::new(64, SchedulerConfig { max_num_batched_tokens: 17, ..long_queue() });
    let same = |id| NewSequence { prompt: (0..17).collect(), ..from("cached", id, 17) };
    h.add(same(1)).unwrap();
    h.run();
    (2..10).for_each(|id| h.add(same(id)).unwrap());
    (11..14).for_each(|id| h.add(from("fresh", id, 17)).unwrap());
    let mut ends = Vec::new();
    while h.scheduler.has_work() {
        ends.extend(h.run().seqs.iter().filter(|seq| !seq.samples.is_empty()).map(|seq| seq.id.0));
    }
    let last_cached = ends.iter().position(|id| *id == 9).unwrap();
    let second_fresh = ends.iter().position(|id| *id == 12).unwrap();
    assert!(last_cached < second_fresh, "{ends:?}");
}

#[test]
fn priority_stands_before_shares() {
    let mut h = Harness::new(64, long_queue());
    h.add(from("a", 1, 16)).unwrap();
    h.run();
    (2..5).for_each(|id| h.add(NewSequence { priority: -1, ..from("a", id, 16) }).unwrap());
    h.add(from("b", 5, 16)).unwrap();
    let order: Vec<_> = (0..4).map(|_| shares(&h.run())[0].0).collect();
    assert_eq!(order, [2, 3, 4, 5]);
}

#[test]
fn a_client_that_has_no_place_takes_one_of_many() {
    let mut h = Harness::new(64, long_queue());
    let endless = |client, id| NewSequence { max_tokens: 60, ..from(client, id, 4) };
    (1..8).for_each(|id| h.add(endless("many", id)).unwrap());
    while h.scheduler.num_running() < 4 {
        h.step();
    }
    h.step();
    assert_eq!(
        waiting(&h),
        [(5, WaitingReason::SequenceSlots), (6, WaitingReason::SequenceSlots), (7, WaitingReason::SequenceSlots)]
    );
    h.add(endless("one", 100)).unwrap();
    let ids = |step: &Step| step.seqs.iter().map(|seq| seq.id.0).collect::<Vec<_>>();
    assert_eq!(ids(&h.step()), [1, 2, 3, 100], "the newest gives way");
    assert_eq!(h.scheduler.num_preemptions(), 1);
    h.add(endless("one", 101)).unwrap();
    for _ in 0..10 {
        assert_eq!(ids(&h.step()), [1, 2, 3, 100], "nothing goes to and fro");
    }
    assert_eq!(h.scheduler.num_preemptions(), 1);
}

#[test]
fn a_single_sequence_keeps_its_place() {
    let mut h = Harness::new(64, SchedulerConfig { max_num_seqs: 1, ..long_queue() });
    h.add(NewSequence { max_tokens: 10, ..from("a", 1, 4) }).unwrap();
    h.step();
    h.add(from("b", 2, 4)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 1)]);
    assert_eq!(waiting(&h), [(2, WaitingReason::SequenceSlots)]);
}

#[test]
fn reasons_name_what_a_sequence_waits_for() {
    let mut h = Harness::new(8, long_queue());
    h.add(NewSequence { max_tokens: 6, ..from("a", 1, 14) }).unwrap();
    h.step();
    h.add(from("a", 2, 16)).unwrap();
    h.add(from("b", 3, 16)).unwrap();
    h.add(NewSequence { priority: 1, ..from("b", 4, 16) }).unwrap();
    h.step();
    // There are eight blocks of four tokens: four are owned, and one is kept free.
    let reasons: BTreeMap<_, _> = waiting(&h).into_iter().collect();
    assert_eq!(reasons[&3], WaitingReason::KvBlocks);
    assert_eq!(reasons[&2], WaitingReason::ClientShare);
    assert_eq!(reasons[&4], WaitingReason::Priority);
    let mut h = Harness::new(64, SchedulerConfig { long_prefill_token_threshold: 8, ..long_queue() });
    (1..3).for_each(|id| h.add(from("a", id, 40)).unwrap());
    h.add(NewSequence { prompt: sequence(1, 40).prompt, ..from("a", 3, 40) }).unwrap();
    h.step();
    assert_eq!(waiting(&h)[0], (2, WaitingReason::StepTokens));
}

/// A prompt of a client with credit preempts a decode of the same client. That refunds as many tokens as the prompt is
/// charged, so the service of the client does not show that the prompt was picked. It must not be picked twice.
#[test]
fn a_prompt_is_picked_once_whomever_it_preempts() {
    let groups = vec![GroupConfig { kind: GroupKind::Sliding { window: 4 }, num_blocks: 3 }];
    let mut sim = Sim::new(SimConfig {
        block_size: 5,
        groups,
        prefix_caching: false,
        max_num_seqs: 2,
        max_num_batched_tokens: 2,
        max_model_len: 40,
        partial_prefills: (1, 1, 1),
        depth: 3,
        ..SimConfig::default()
    });
    let request = |len: usize, max_tokens| Request::new(vec![1; len], max_tokens);
    let later = |len, max_tokens| Request { priority: 1, all_logits: true, ..request(len, max_tokens) };
    sim.add(&request(1, 3)).unwrap();
    sim.add(&Request { client: Some(0), n: 2, ..later(18, 14) }).unwrap();
    sim.add(&request(12, 1)).unwrap();
    sim.cancel(2);
    sim.cancel(14);
    sim.add(&later(7, 1)).unwrap();
    sim.step();
    sim.step();
    sim.add(&Request { priority: 1, ..request(5, 2) }).unwrap();
    sim.step();
    sim.check();
    sim.drain();
}

/// Clients without sequences are forgotten once no other has to catch up with them, or if there are too many.
#[test]
fn idle_clients_are_forgotten() {
    let mut h = Harness::new(64, long_queue());
    h.add(NewSequence { max_tokens: 40, ..from("long", 0, 4) }).unwrap();
    for id in 1..3000 {
        h.add(from(&format!("client {id}"), id, 12)).unwrap();
        h.run();
        if h.scheduler.info(SeqId(0)).is_none() {
            h.add(NewSequence { max_tokens: 40, ..from("long", 0, 4) }).unwrap();
        }
    }
    while h.scheduler.has_work() {
        h.run();
    }
    h.scheduler.check_integrity().unwrap();
}

/// Returns the largest difference between the tokens of two clients that always have waiting prompts.
fn difference(prompts: [&[usize]; 2], budget: usize) -> u64 {
    // There are as many sequence slots as a step has tokens, so only its share limits a client.
    let config = SchedulerConfig { max_num_seqs: budget, max_num_batched_tokens: budget, ..long_queue() };
    let mut h = Harness::new(2048, config);
    let (mut served, mut next, mut worst) = ([0u64; 2], [0usize; 2], 0);
    for _ in 0..300 {
        for client in 0..2 {
            while waiting(&h).iter().filter(|(id, _)| id % 2 == client as u64).count() < 2 * budget {
                let n = prompts[client][next[client] % prompts[client].len()];
                let id = 2 * next[client] as u64 + client as u64;
                h.add(from(["a", "b"][client], id, n)).unwrap();
                next[client] += 1;
            }
        }
        let step = h.step();
        let mut ends = [u64::MAX; 2];
        for seq in &step.seqs {
            served[(seq.id.0 % 2) as usize] += seq.num_tokens as u64;
            if !seq.samples.is_empty() {
                let end = &mut ends[(seq.id.0 % 2) as usize];
                assert!(*end == u64::MAX || *end < seq.id.0, "a client's prompts end in their order");
                *end = seq.id.0;
                h.finish(seq.id.0);
            }
        }
        worst = worst.max(served[0].abs_diff(served[1]));
    }
    assert!(served.iter().all(|served| *served > 0), "{served:?}");
    worst
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// The bound is that of fair queueing over whole prompts: either may be ahead by a prompt and a step.
    #[test]
    fn tokens_of_two_backlogged_clients_differ_by_a_bounded_amount(
        a in vec(1usize..60, 1..8), b in vec(1usize..60, 1..8), budget in 4usize..40,
    ) {
        let worst = difference([&a, &b], budget);
        assert!(worst <= 2 * (60 + budget as u64), "{worst}");
    }
}
