//! Tests of the memory that a load leaves for other uses.

use crate::config::{DeviceKind, EngineArgs, GpuOptions};
use crate::devices::OpenDevice;
use crate::gpu::Device;
use crate::gpu::testing::devices::{self, Live};
use crate::load::load_on;
use crate::testdata::TempFile;
use crate::tests::support::*;
use crate::tests::tiny;
use crate::{Engine, LoadedModel};
use crate::{Error, Result};

/// A pool of exactly the available size is served, without the matrix library, whose memory it takes.
#[test]
fn the_pool_comes_before_the_matrix_library() {
    let Some((device, gpu)) = devices::open("cpu-wave32:up@room") else { return };
    let file = tiny::model();
    let load = |bytes| {
        let gpu = GpuOptions { vendor_blas: Some(true), ..gpu.clone() };
        let args =
            EngineArgs { device: DeviceKind::Gpu, gpu, kv_cache_memory: Some(bytes), ..EngineArgs::new(&file.0) };
        load_on(&args, || Ok(OpenDevice::Gpu(device.clone())), &mut |_| true)
    };
    let Err(Error::OutOfMemory { available, .. }) = load(1 << 50) else { panic!("1 PiB is there") };
    let LoadedModel { executor, .. } = load(available).unwrap();
    assert!(available - executor.memory().kv_cache < tiny::BLOCK_BYTES);
    let described = executor.describe();
    assert!(described.contains("beside weights and KV cache it needs 335 MB, 0 bytes are available"), "{described}");
    drop(executor);
    assert_eq!(device.allocated_bytes(), 0);
}

/// Loads the model with a KV cache of this size.
fn load_limited(device: &Device, gpu: &GpuOptions, file: &TempFile, pool: u64) -> Result<LoadedModel> {
    let args = EngineArgs {
        device: DeviceKind::Gpu,
        gpu: gpu.clone(),
        kv_cache_memory: Some(pool),
        ..EngineArgs::new(&file.0)
    };
    load_on(&args, || Ok(OpenDevice::Gpu(device.clone())), &mut |_| true)
}

/// Under a limit that the model exceeds by one byte, some of its weights lie in the host's memory. Requests get the
/// same tokens. Without room for those that must stay, and for the KV cache, the load is refused.
#[test]
fn a_limit_moves_weights_to_the_host() {
    let Some((device, gpu, faults)) = devices::open_faulty("cpu-wave32:up@limit") else { return };
    let (file, pool) = (tiny::model(), 20 * tiny::BLOCK_BYTES);
    let free = device.free_memory().unwrap();
    let Err(Error::OutOfMemory { available, .. }) = load_limited(&device, &gpu, &file, 1 << 50) else {
        panic!("1 PiB is there")
    };
    let limited = |limit| GpuOptions { memory_limit: Some(limit), ..gpu.clone() };
    let serve = |gpu: &GpuOptions| {
        let LoadedModel { executor, config, .. } = load_limited(&device, gpu, &file, pool).unwrap();
        let (memory, held) = (executor.memory(), device.allocated_bytes());
        let engine = Engine::start(LoadedModel::new(executor, config)).unwrap();
        assert_eq!(engine.memory(), memory);
        let tokens = submit(&engine, request(&[1, 2, 3], greedy(12))).unwrap().wait()[&0].tokens.clone();
        engine.close();
        assert_eq!((device.allocated_bytes(), faults.live()), (0, Live::default()));
        (memory, held, tokens)
    };
    let least = pool + free - available;
    let (whole, _, expected) = serve(&limited(least));
    assert_eq!(whole.host_weights, 0);
    let (part, held, tokens) = serve(&limited(least - 1));
    assert_eq!(tokens, expected);
    assert!(part.host_weights > 0 && part.weights > 0, "{part:?}");
    assert_eq!(part.host_weights + part.weights, whole.weights);
    assert!(held < least, "{held} bytes under a limit of {least}");
    let (half, ..) = serve(&limited(least - whole.weights / 2));
    assert!(half.host_weights > part.host_weights && half.weights <= whole.weights / 2, "{half:?}");
    let refused = load_limited(&device, &limited(least - whole.weights), &file, pool).map(drop);
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    assert_eq!((device.allocated_bytes(), faults.live()), (0, Live::default()));
}
