//! Loads of contents from host memory, next to the other work of a step.

use super::harness::{Harness, from, limits, sequence, shares};
use crate::kv_cache::{ContentKey, Demand, Move, OffloadConfig, PrefixHit, Tokens};
use crate::prompts::MAX_LOADS_BESIDE;
use crate::{NewSequence, SchedulerConfig, SeqId, WaitingReason};

/// Puts all full blocks of a prompt in host memory.
fn hold(h: &Harness, prompt: &[u32]) {
    let mut kv = h.kv_cache.write();
    kv.enable_offload(OffloadConfig { memory: 1 << 20, content_bytes: vec![90], num_ahead: vec![1] }).unwrap();
    let mut chain = kv.new_chain(None, Default::default());
    kv.extend_chain(&mut chain, &Tokens::new(prompt.into()));
    for hash in chain.hashes() {
        assert!(kv.keep_in_memory(ContentKey { pool: 0, hash: *hash }).is_empty());
    }
}

fn take_loads(h: &Harness) -> Vec<Move> {
    h.kv_cache.write().take_moves().loads
}

fn end(h: &Harness, loads: &[Move]) {
    loads.iter().for_each(|load| h.kv_cache.write().end_load(&load.key).unwrap());
    h.scheduler.check_integrity().unwrap();
}

fn waits_for_loads(h: &Harness, id: u64) -> bool {
    h.scheduler.waiting().contains(&(SeqId(id), WaitingReason::KvOffload))
}

/// Sequences wait until their prefix is on the device, while others run. Two with one prefix need one load.
#[test]
fn others_run_while_a_prefix_is_loaded() {
    let mut h = Harness::new(16, limits());
    let prompt = sequence(9, 9).prompt;
    hold(&h, &prompt);
    h.add(sequence(1, 6)).unwrap();
    h.step();
    h.add(sequence(9, 9)).unwrap();
    h.add(NewSequence { prompt, ..sequence(8, 9) }).unwrap();
    h.add(sequence(2, 3)).unwrap();
    assert_eq!(shares(&h.step()), [(1, 1), (2, 3)]);
    let loads = take_loads(&h);
    assert_eq!(loads.len(), 2);
    end(&h, &loads[..1]);
    assert_eq!(shares(&h.step()), [(1, 1), (2, 1)]);
    assert!(waits_for_loads(&h, 9) && waits_for_loads(&h, 8) && take_loads(&h).is_empty());
    end(&h, &loads[1..]);
    let step = h.step();
    assert!([(9, 1), (8, 1)].iter().all(|share| shares(&step).contains(share)), "{:?}", shares(&step));
    // The second one found what the first one had already used.
    assert_eq!(h.kv_cache.read().offload_stats().memory_hit_tokens, 8);
}

/// Beside a sequence that runs, a step takes blocks for a bounded number of loads, whatever the length of the prefix.
/// Their contents go to the host before it.
#[test]
fn a_step_begins_few_loads() {
    const NUM_BLOCKS: usize = 80;
    let num_tokens = 4 * NUM_BLOCKS + 1;
    let long = |limit: usize| SchedulerConfig { max_model_len: limit, context_length: limit, ..limits() };
    let mut h = Harness::new(NUM_BLOCKS + 8, SchedulerConfig { max_num_batched_tokens: 400, ..long(400) });
    let prompt = sequence(9, num_tokens).prompt;
    hold(&h, &prompt);
    h.add(sequence(3, num_tokens)).unwrap();
    h.step();
    h.scheduler.finish(SeqId(3), h.now);
    h.kv_cache.write().take_moves();
    h.add(sequence(1, 6)).unwrap();
    h.step();
    h.add(sequence(9, num_tokens)).unwrap();
    let (mut loading, mut num_loads, mut num_steps) = (Vec::new(), 0, 0);
    while waits_for_loads(&h, 9) || num_steps == 0 {
        h.step();
        num_steps += 1;
        let moves = h.kv_cache.write().take_moves();
        assert!(moves.saves.len() <= MAX_LOADS_BESIDE && moves.loads.len() <= MAX_LOADS_BESIDE);
        num_loads += moves.loads.len();
        loading.extend(moves.loads);
        assert!(loading.len() <= MAX_LOADS_BESIDE);
        // The device copies fewer in a step.
        let rest = loading.split_off(loading.len().min(20));
        end(&h, &loading);
        loading = rest;
    }
    assert_eq!(num_loads, NUM_BLOCKS);
    assert!((4..8).contains(&num_steps), "{num_steps}");
    // All of it was still there.
    assert_eq!(h.kv_cache.read().offload_stats().memory_hit_tokens, 4 * NUM_BLOCKS as u64);
}

/// A sequence that ends meanwhile leaves its blocks to the copies. Then they are cached like any others.
#[test]
fn a_load_outlives_its_sequence() {
    let mut h = Harness::new(16, limits());
    hold(&h, &sequence(9, 9).prompt);
    h.add(sequence(9, 9)).unwrap();
    assert!(h.schedule().seqs.is_empty());
    let loads = take_loads(&h);
    h.scheduler.finish(SeqId(9), h.now);
    let owned = |h: &Harness| h.kv_cache.read().stats().blocks_owned;
    assert_eq!(owned(&h), 2);
    h.add(sequence(9, 9)).unwrap();
    assert!(h.schedule().seqs.is_empty() && waits_for_loads(&h, 9) && take_loads(&h).is_empty());
    h.scheduler.finish(SeqId(9), h.now);
    end(&h, &loads);
    assert_eq!((owned(&h), h.kv_cache.read().stats().blocks_cached), (0, 2));
    h.add(sequence(9, 9)).unwrap();
    assert_eq!(shares(&h.step()), [(9, 1)]);
}

/// A prefix that was evicted again before its sequence could start is loaded once more, and then computed.
#[test]
fn a_sequence_does_not_load_for_ever() {
    let mut h = Harness::new(8, limits());
    hold(&h, &sequence(9, 9).prompt);
    h.add(sequence(9, 9)).unwrap();
    for _ in 0..2 {
        assert!(h.schedule().seqs.is_empty());
        let loads = take_loads(&h);
        assert_eq!(loads.len(), 2);
        end(&h, &loads);
        let mut kv = h.kv_cache.write();
        let mut all = kv.new_sequence();
        let plan = kv.plan(&all, PrefixHit::default(), &Demand { write: 0..32, reserve: 32, ..Demand::default() });
        kv.commit(plan.unwrap(), &mut all, &mut Vec::new()).unwrap();
        drop(all);
        kv.tick(0);
    }
    assert_eq!(shares(&h.step()), [(9, 9)]);
}

/// A step copies the block that two sequences share. Blocks of a third one may be loaded before the step, so the copied
/// block must not be one of them. That sequence takes the slot of another only once it can start.
#[test]
fn loads_spare_the_sources_of_copies() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_seqs: 2, ..limits() });
    let prompt = from("x", 9, 9).prompt;
    hold(&h, &prompt);
    h.add(NewSequence { client: Some("y".into()), will_fork: true, ..sequence(1, 6) }).unwrap();
    h.step();
    h.scheduler.fork(SeqId(1), SeqId(2), 70, h.now).unwrap();
    h.add(from("x", 9, 9)).unwrap();
    let step = h.schedule();
    let loads = take_loads(&h);
    assert_eq!(step.batch.block_copies.len(), 1);
    let is_copied = |block: u32| step.batch.block_copies.iter().any(|copy| copy.src == block);
    assert!(!loads.iter().any(|load| is_copied(load.block)), "{:?} {loads:?}", step.batch.block_copies);
    assert!(waits_for_loads(&h, 9));
    assert_eq!((loads.len(), h.scheduler.num_running()), (2, 2));
    h.commit(&step);
    assert_eq!(h.step().seqs.len(), 2);
    end(&h, &loads);
    let step = h.step();
    assert!(shares(&step).contains(&(9, 1)), "{:?}", shares(&step));
    assert_eq!(h.kv_cache.read().offload_stats().memory_hit_tokens, 8);
}
