//! A KV cache of int8 or int4 in an engine takes less memory, and texts have the same bits in any situation.

use crate::Engine;
use crate::Error;
use crate::config::{DeviceKind, EngineArgs, KvCacheDtype, SamplingParams};
use crate::testdata;
use crate::tests::support::*;

const LENGTH: usize = 128;

/// Returns the bytes of a block of 16 tokens of the golden model: K and V of two layers with two heads of 64 elements.
fn block_bytes(dtype: KvCacheDtype) -> u64 {
    // A scale of four bytes for a head, or for each 32 elements.
    let head = if dtype == KvCacheDtype::Int8 { 64 + 4 } else { 64 / 2 + 2 * 4 };
    2 * 2 * 2 * 16 * head
}

fn args(file: &testdata::TempFile, dtype: KvCacheDtype, blocks: u64, enable_prefix_caching: bool) -> EngineArgs {
    EngineArgs {
        device: DeviceKind::Cpu,
        num_threads: Some(1),
        max_num_seqs: Some(4),
        max_num_batched_tokens: Some(48),
        max_model_len: Some(LENGTH),
        kv_cache_memory: Some(blocks * block_bytes(dtype)),
        kv_cache_dtype: dtype,
        enable_prefix_caching,
        ..EngineArgs::new(&file.0)
    }
}

#[test]
fn an_int8_cache_is_shared_copied_and_recomputed_exactly() {
    check_shared_copied_and_recomputed(KvCacheDtype::Int8);
}

#[test]
fn an_int4_cache_is_shared_copied_and_recomputed_exactly() {
    check_shared_copied_and_recomputed(KvCacheDtype::Int4);
}

/// A pool for little more than one sequence preempts all the time. A repeated prompt finds its prefix in the cache, and
/// forks copy the block that they write to. None of it changes a token.
fn check_shared_copied_and_recomputed(dtype: KvCacheDtype) {
    let file = testdata::file("arch/qwen3.gguf");
    let engine = |blocks, caching| Engine::load(args(&file, dtype, blocks, caching), &mut |_| true).unwrap();
    let (alone, small) = (engine(64, false), engine(12, true));
    let prompts = assert_recomputed_exactly([(&alone, 64), (&small, 12)], block_bytes(dtype), LENGTH);
    let forked = SamplingParams { n: 3, temperature: 1.3, seed: Some(5), ignore_eos: true, ..greedy(30) };
    let of = |engine: &Engine| {
        let done = submit(engine, request(&prompts[2], forked.clone())).unwrap().wait();
        (0..3).map(|index| done[&index].tokens.clone()).collect::<Vec<_>>()
    };
    let forks = of(&alone);
    assert_eq!(of(&small), forks);
    assert!(forks[0] != forks[1] && forks[1] != forks[2], "{forks:?}");

    for engine in [alone, small] {
        let allocations = engine.stats().device_allocations;
        assert_nothing_left_of(&engine, allocations);
        engine.close();
    }
}

#[test]
fn a_latent_cache_in_int4_is_refused() {
    let file = testdata::file("arch/deepseek2.gguf");
    let refused = Engine::load(args(&file, KvCacheDtype::Int4, 64, true), &mut |_| true).err().unwrap();
    assert!(matches!(refused, Error::InvalidRequest { what: "kv_cache_dtype", .. }), "{refused}");
    assert!(refused.to_string().contains("latent"), "{refused}");
}
