//! An int8 KV cache in an engine: about half the memory, and a text has the same bits whatever happens around it.

use super::support::*;
use crate::Error;
use crate::config::{DeviceKind, EngineArgs, KvCacheDtype, SamplingParams};
use crate::engine::{Engine, FinishReason};
use crate::testdata;

/// Bytes of a block of 16 tokens of the golden model: K and V of two layers with two heads of 64 elements and a scale.
const BLOCK_BYTES: u64 = 2 * 2 * 2 * 16 * (64 + 4);
const LENGTH: usize = 128;

fn args(file: &testdata::TempFile, blocks: u64, enable_prefix_caching: bool) -> EngineArgs {
    EngineArgs {
        device: DeviceKind::Cpu,
        num_threads: Some(1),
        max_num_seqs: 4,
        max_num_batched_tokens: Some(48),
        max_model_len: Some(LENGTH),
        kv_cache_memory: Some(blocks * BLOCK_BYTES),
        kv_cache_dtype: KvCacheDtype::Int8,
        enable_prefix_caching,
        ..EngineArgs::new(&file.0)
    }
}

/// A pool in which one sequence fits, and hardly another, preempts all the time; a prompt's beginning is in the cache
/// when it comes again, and forks copy the block that they write into. None of it changes a token.
#[test]
fn an_int8_cache_is_shared_copied_and_recomputed_exactly() {
    let file = testdata::file("arch/qwen3.gguf");
    let engine = |blocks, caching| Engine::load(args(&file, blocks, caching), &mut |_| true).unwrap();
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
    let forked = SamplingParams { n: 3, temperature: 1.3, seed: Some(5), ignore_eos: true, ..greedy(30) };
    let of = |engine: &Engine| {
        let done = submit(engine, request(&prompts[2], forked.clone())).unwrap().wait();
        (0..3).map(|index| done[&index].tokens.clone()).collect::<Vec<_>>()
    };
    let forks = of(&alone);
    assert_eq!(of(&small), forks);
    assert!(forks[0] != forks[1] && forks[1] != forks[2], "{forks:?}");

    let stats = small.stats();
    assert!(stats.num_preemptions > 0 && stats.kv_cache.prefix_cache_hits > 0, "{stats:?}");
    for engine in [alone, small] {
        let allocations = engine.stats().device_allocations;
        assert_nothing_left_of(&engine, allocations);
        engine.close();
    }
}

#[test]
fn a_latent_cache_in_int8_is_refused() {
    let file = testdata::file("arch/deepseek2.gguf");
    let Err(refused) = Engine::load(args(&file, 64, true), &mut |_| true) else { panic!("it was loaded") };
    assert!(matches!(refused, Error::InvalidRequest { what: "kv_cache_dtype", .. }), "{refused}");
    assert!(refused.to_string().contains("latent"), "{refused}");
}
