//! Tests of the memory that a load leaves for other things.

use super::tiny;
use crate::Error;
use crate::backend::OpenDevice;
use crate::backend::gpu::tests::devices;
use crate::config::{DeviceKind, EngineArgs, GpuOptions};
use crate::engine::LoadedModel;
use crate::engine::load::load_on;

/// A pool of just the size that is there is served, without the matrix library, whose memory it takes.
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
