//! The bytes of KV pools, whose memory other crates do not see.

use rocmforge_backend::{Backend, KvLayerSpec, Loader};
use rocmforge_config::KvCacheDtype;
use rocmforge_conformance::{kv_layer, matrix, vector};
use rocmforge_core::batch::GroupKind;
use rocmforge_cpu::CpuLoader;

fn kv_spec(num_blocks: usize, block_size: usize) -> KvLayerSpec {
    let dtype = KvCacheDtype::F16;
    KvLayerSpec {
        kind: GroupKind::Full,
        skips_first: false,
        num_blocks,
        block_size,
        num_kv_heads: 3,
        head_dim: 64,
        latent: None,
        dtype,
    }
}

/// K10, K16, K23: the pool takes exactly 2 · kv heads · head size · 2 or 4 bytes per token and layer. In int8 it takes
/// 2 · kv heads · (head size + 4), and in int4 20 for each 32 elements. The ledger adds up to the allocations.
#[test]
fn kv_bytes_and_ledger_are_exact() {
    let mut loader = CpuLoader::new(2, 32).unwrap();
    for _ in 0..4 {
        let layer = kv_layer(&mut loader, kv_spec(50, 32)).unwrap();
        assert_eq!(layer.bytes(), 50 * 32 * 2 * 3 * 64 * 2);
    }
    let spec = KvLayerSpec { dtype: KvCacheDtype::F32, ..kv_spec(50, 32) };
    assert_eq!(kv_layer(&mut loader, spec).unwrap().bytes(), 50 * 32 * 2 * 3 * 64 * 4);
    let int8 = KvLayerSpec { dtype: KvCacheDtype::Int8, ..kv_spec(50, 32) };
    assert_eq!(kv_layer(&mut loader, int8).unwrap().bytes(), 50 * 32 * 2 * 3 * (64 + 4));
    let int4 = KvLayerSpec { dtype: KvCacheDtype::Int4, ..kv_spec(50, 32) };
    assert_eq!(kv_layer(&mut loader, int4).unwrap().bytes(), 50 * 32 * 2 * 3 * (2 * 20));
    loader.alloc_buffer(32, 100).unwrap();
    vector(&mut loader, &[1.0; 80]).unwrap();
    let weight = matrix(&mut loader, &[1.0; 64 * 32], 32).unwrap();
    let backend = loader.finish().unwrap();
    let ledger = backend.memory();
    let block_bytes = [spec, int8, int4].map(|spec| spec.block_bytes().unwrap());
    assert_eq!(ledger.kv_cache, 50 * (4 * kv_spec(50, 32).block_bytes().unwrap() + block_bytes.iter().sum::<u64>()));
    assert_eq!(ledger.weights, 80 * 4 + weight.bytes());
    assert!(ledger.scratch >= 32 * 100 * 4);
    assert_eq!(ledger.other, 0);
    assert_eq!(backend.device_allocations(), 5 * 2 + 3 + 4 + 1 + 1 + 1 + 1);
}
