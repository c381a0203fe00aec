//! Latent attention in an engine: the KV cache holds one row per token, and texts have the same bits in any situation.

use crate::Engine;
use crate::config::{DeviceKind, EngineArgs};
use crate::testdata;
use crate::tests::support::*;

/// The bytes of a block of 16 tokens of the golden model: three layers, whose rows have 48 elements in f16.
const BLOCK_BYTES: u64 = 3 * 16 * 48 * 2;
const LENGTH: usize = 128;

/// A pool for little more than one sequence preempts all the time, and a repeated prompt finds its prefix in the cache.
/// Neither changes a token.
#[test]
fn a_latent_cache_is_shared_and_recomputed_exactly() {
    let file = testdata::file("arch/deepseek2.gguf");
    let engine = |blocks: u64, enable_prefix_caching| {
        let args = EngineArgs {
            device: DeviceKind::Cpu,
            num_threads: Some(1),
            max_num_seqs: Some(4),
            max_num_batched_tokens: Some(48),
            max_model_len: Some(LENGTH),
            kv_cache_memory: Some(blocks * BLOCK_BYTES),
            enable_prefix_caching,
            ..EngineArgs::new(&file.0)
        };
        Engine::load(args, &mut |_| true).unwrap()
    };
    let (alone, small) = (engine(64, false), engine(12, true));
    assert_recomputed_exactly([(&alone, 64), (&small, 12)], BLOCK_BYTES, LENGTH);
    for engine in [alone, small] {
        let allocations = engine.stats().device_allocations;
        assert_nothing_left_of(&engine, allocations);
        engine.close();
    }
}
