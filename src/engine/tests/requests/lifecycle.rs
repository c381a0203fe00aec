use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::FinishReason;
use crate::RequestId;
use crate::config::{EngineConfig, SamplingParams};
use crate::output::RequestMetrics;
use crate::output::records::{MAX_RECORDS, Records, RequestRecord};
use crate::tests::fake::hashed;
use crate::tests::support::*;

/// K1, K2: a finished request leaves nothing.
#[test]
fn test_kv_cache_cleanup_on_completion() {
    let rig = Rig::new();
    let total = rig.engine.stats().kv_cache.blocks_total;
    for i in 0..100 {
        rig.run(&[i % 60; 13], greedy(9));
        let kv = rig.engine.stats().kv_cache;
        assert_eq!((kv.blocks_owned, kv.blocks_free + kv.blocks_cached), (0, total));
    }
    assert_nothing_left(&rig.engine);
}

/// K1: the whole pool is available again after others used it, and forgetting the prefixes frees every block.
#[test]
fn test_kv_cache_memory_freed() {
    let small = EngineConfig { kv_groups: blocks(16), ..config() };
    let rig = Rig::with(small, hashed(VOCAB), None);
    for i in 0..5 {
        // The request uses 60 of the pool's 64 tokens.
        assert_eq!(rig.run(&[i; 50], greedy(10))[&0].tokens.len(), 10);
        assert_nothing_left(&rig.engine);
    }
    assert!(rig.engine.stats().kv_cache.blocks_cached > 0);
    assert!(rig.engine.reset_prefix_cache().unwrap());
    let kv = rig.engine.stats().kv_cache;
    assert_eq!((kv.blocks_free, kv.blocks_cached), (16, 0));
}

/// K12, S13: during 1,000 requests device memory never grows, and host memory is bounded.
#[test]
fn test_long_running_server_memory_stable() {
    let rig = Rig::with(EngineConfig { retention: Duration::ZERO, ..config() }, hashed(VOCAB), None);
    let before = rig.engine.memory();
    for round in 0..20u32 {
        let clients: Vec<_> =
            (0..50).map(|i| rig.submit(&[(round + i) % 60, i % 7, 3], greedy(1 + (i as usize % 5)))).collect();
        for (i, client) in clients.into_iter().enumerate() {
            assert_eq!(client.wait()[&0].tokens.len(), 1 + i % 5);
        }
        assert_eq!(rig.engine.memory(), before);
        assert_nothing_left(&rig.engine);
    }
    // S27: the counters count.
    let stats = rig.engine.stats();
    assert_eq!(stats.num_finished_length, 1000);
    assert_eq!(stats.prompt_tokens, 3000);
    assert_eq!(stats.generated_tokens, 20 * 10 * (1 + 2 + 3 + 4 + 5));
    assert!(stats.finished_records <= 1);
}

/// S27: after three requests the counters equal three.
#[test]
fn counters_after_three_requests() {
    let rig = Rig::new();
    rig.run(&[1, 2], greedy(4));
    rig.run(&[1, 2], SamplingParams { stop_token_ids: (0..VOCAB as u32).collect(), ..greedy(4) });
    rig.run(&[1, 2], greedy(4));
    let stats = rig.engine.stats();
    assert_eq!((stats.num_finished_length, stats.num_finished_stop), (2, 1));
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (6, 9));
    // The step after a token that the device picks is launched before it is known that the token ends the text.
    assert_eq!(stats.engine_steps, 10);
    assert_eq!(stats.finished_records, 3);
}

/// K12: finished requests are remembered by name for a while, then removed.
#[test]
fn test_purge_completed_requests() {
    let rig = Rig::new();
    let draft = Draft { name: Some("mine".into()), ..request(&[1, 2, 3], greedy(4)) };
    submit(&rig.engine, draft).unwrap().wait();
    let record = rig.engine.record("mine").unwrap();
    assert_eq!(record.finish_reason, FinishReason::Length);
    assert_eq!((record.prompt_tokens, record.generated_tokens), (3, 4));
    assert!(record.metrics.total_time.is_some());
    assert!(rig.engine.record("other").is_none());

    let mut records = Records::new(Duration::from_micros(100));
    records.insert(named(1, "a"), 0);
    records.insert(named(2, "b"), 60);
    assert_eq!(records.get("a", 100).unwrap().id, RequestId(1));
    assert!(records.get("a", 101).is_none());
    assert_eq!(records.len(101), 1);
    // The older of two requests with one name is removed without the younger.
    records.insert(named(3, "b"), 120);
    assert_eq!(records.get("b", 165).unwrap().id, RequestId(3));
    assert_eq!(records.len(300), 0);
}

/// K12: 100,000 records are bounded by number where age does not bound them.
#[test]
fn records_are_bounded_by_number() {
    let mut records = Records::new(Duration::MAX);
    for i in 0..100_000u64 {
        records.insert(named(i, &format!("r{i}")), i);
    }
    assert_eq!(records.len(100_000), MAX_RECORDS);
    assert!(records.get("r89999", 100_000).is_none());
    assert_eq!(records.get("r90000", 100_000).unwrap().id, RequestId(90_000));
}

fn named(id: u64, name: &str) -> RequestRecord {
    RequestRecord {
        id: RequestId(id),
        name: Arc::from(name),
        finish_reason: FinishReason::Stop,
        error: None,
        prompt_tokens: 1,
        generated_tokens: 1,
        metrics: RequestMetrics::default(),
    }
}

/// K3: stats, block map and integrity are read from ten threads while requests arrive and end.
#[test]
fn test_kv_cache_concurrent_access() {
    let rig = Rig::with(EngineConfig { kv_groups: blocks(20), ..config() }, hashed(VOCAB), None);
    std::thread::scope(|scope| {
        for thread in 0..6u32 {
            let rig = &rig;
            scope.spawn(move || {
                for i in 0..20 {
                    let prompt = [thread, i % 3, 5, 5, 5, 5];
                    let done = rig.run(&prompt, greedy(12));
                    assert_eq!(done[&0].tokens, alone(&rig.rule, &prompt, &greedy(12), 0, 0));
                }
            });
        }
        for _ in 0..4 {
            let engine = rig.engine.clone();
            scope.spawn(move || {
                for _ in 0..100 {
                    let kv = engine.stats().kv_cache;
                    assert_eq!(kv.blocks_free + kv.blocks_cached + kv.blocks_owned, 20);
                    assert_eq!(engine.block_map().len(), 20);
                    engine.check_integrity().unwrap();
                }
            });
        }
    });
    assert_nothing_left(&rig.engine);
}

/// S12: while an asynchronous device computes a step, the next one already has its blocks.
#[test]
fn the_next_step_is_prepared_while_the_device_computes() {
    for (synchronous, blocks) in [(true, 1), (false, 2)] {
        let rig = Rig::new();
        rig.script.synchronous.store(synchronous, Ordering::SeqCst);
        rig.script.close_gate();
        // The prompt fills one block, so the first token after it needs another.
        let client = rig.submit(&[1, 2, 3, 4], greedy(3));
        rig.script.wait_at_gate();
        let owned = rig.engine.block_map().iter().filter(|block| block.owners > 0).count();
        assert_eq!(owned, blocks);
        rig.script.open_gate();
        assert_eq!(client.wait()[&0].tokens, alone(&rig.rule, &[1, 2, 3, 4], &greedy(3), 0, 0));
        assert_nothing_left(&rig.engine);
    }
}
