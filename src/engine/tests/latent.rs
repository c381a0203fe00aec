//! Latent attention in an engine: the KV cache holds one row a token, and a text has the same bits whatever happens
//! around it.

use super::support::*;
use crate::config::{DeviceKind, EngineArgs, SamplingParams};
use crate::engine::{Engine, FinishReason};
use crate::testdata;

/// Bytes of a block of 16 tokens of the golden model: three layers, whose rows have 48 elements in f16.
const BLOCK_BYTES: u64 = 3 * 16 * 48 * 2;
const LENGTH: usize = 128;

/// A pool in which one sequence fits, and hardly another, preempts all the time; a prompt's beginning is in the cache
/// when it comes again. Neither changes a token.
#[test]
fn a_latent_cache_is_shared_and_recomputed_exactly() {
    let file = testdata::file("arch/deepseek2.gguf");
    let engine = |blocks: u64, enable_prefix_caching| {
        let args = EngineArgs {
            device: DeviceKind::Cpu,
            num_threads: Some(1),
            max_num_seqs: 4,
            max_num_batched_tokens: Some(48),
            max_model_len: Some(LENGTH),
            kv_cache_memory: Some(blocks * BLOCK_BYTES),
            enable_prefix_caching,
            ..EngineArgs::new(&file.0)
        };
        Engine::load(args, &mut |_| true).unwrap()
    };
    let (alone, small) = (engine(64, false), engine(12, true));
    for (engine, blocks) in [(&alone, 64_usize), (&small, 12)] {
        assert_eq!(engine.stats().kv_cache.blocks_total, blocks);
        assert_eq!(engine.memory().kv_cache, blocks as u64 * BLOCK_BYTES);
    }
    let prompt = |seq: u32| (0..40).map(|i| 7 + i * i % 31).chain((0..seq + 1).map(|i| 90 + i * seq)).collect();
    let prompts: Vec<Vec<u32>> = (0..4).map(prompt).collect();
    let params = |seq: usize| SamplingParams { ignore_eos: true, ..greedy(LENGTH - prompts[seq].len()) };
    let expected: Vec<Vec<u32>> = (0..4)
        .map(|seq| submit(&alone, request(&prompts[seq], params(seq))).unwrap().wait()[&0].tokens.clone())
        .collect();
    for _ in 0..2 {
        let clients: Vec<Client> =
            (0..4).map(|seq| submit(&small, request(&prompts[seq], params(seq))).unwrap()).collect();
        for (client, expected) in clients.into_iter().zip(&expected) {
            let done = client.wait();
            assert_eq!((done[&0].reason, &done[&0].tokens), (Some(FinishReason::Length), expected));
        }
    }
    let stats = small.stats();
    assert!(stats.num_preemptions > 0 && stats.kv_cache.prefix_cache_hits > 0, "{stats:?}");
    for engine in [alone, small] {
        let allocations = engine.stats().device_allocations;
        assert_nothing_left_of(&engine, allocations);
        engine.close();
    }
}
