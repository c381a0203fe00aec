//! Loads of contents from host memory, next to the other work of a step.

use super::harness::{Harness, from, limits, sequence, shares};
use crate::kv_cache::{ContentKey, OffloadConfig, Tokens};
use crate::{NewSequence, SchedulerConfig, SeqId, WaitingReason};

/// A step copies the block that two sequences share. Then one of them gives its slot to a sequence whose blocks are
/// loaded before the step, so the copied block must not be one of them.
#[test]
fn loads_spare_the_sources_of_copies() {
    let mut h = Harness::new(16, SchedulerConfig { max_num_seqs: 2, ..limits() });
    let prompt = from("x", 9, 9).prompt;
    {
        let mut kv = h.kv_cache.write();
        kv.enable_offload(OffloadConfig { memory: 1 << 20, content_bytes: vec![90], num_ahead: vec![1] }).unwrap();
        let mut chain = kv.new_chain(None, Default::default());
        kv.extend_chain(&mut chain, &Tokens::new(prompt));
        for hash in chain.hashes() {
            assert!(kv.keep_in_memory(ContentKey { pool: 0, hash: *hash }).is_empty());
        }
    }
    h.add(NewSequence { client: Some("y".into()), will_fork: true, ..sequence(1, 6) }).unwrap();
    h.step();
    h.scheduler.fork(SeqId(1), SeqId(2), 70, h.now).unwrap();
    h.add(from("x", 9, 9)).unwrap();
    let step = h.schedule();
    let loads = h.kv_cache.write().take_moves().loads;
    assert_eq!(step.batch.block_copies.len(), 1);
    let is_copied = |block: u32| step.batch.block_copies.iter().any(|copy| copy.src == block);
    assert!(!loads.iter().any(|load| is_copied(load.block)), "{:?} {loads:?}", step.batch.block_copies);
    assert!(h.scheduler.waiting().contains(&(SeqId(9), WaitingReason::KvOffload)));
    h.commit(&step);
    // It starts one step later, after its two full blocks.
    let step = h.step();
    assert!(shares(&step).contains(&(9, 1)), "{:?}", shares(&step));
    assert_eq!(h.kv_cache.write().take_moves().loads.len(), 2);
    assert_eq!(h.kv_cache.read().offload_stats().memory_hit_tokens, 8);
}
