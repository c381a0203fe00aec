//! Device memory, and the threads that allocate it.

use crate::Error;
use crate::backend::{KvLayerSpec, LinearPart, Loader, Upload};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::testing::devices::{self, CPU_TARGETS, Call};
use crate::{DeviceBuffer, HostBuffer, Stream};

/// G24: a load that does not fit is refused before any allocation or copy. The error names the available memory and a
/// remedy.
#[test]
fn what_does_not_fit_is_refused_first() {
    let Some((device, options, faults)) = devices::open_faulty(CPU_TARGETS[0]) else { return };
    let free = device.memory_info().unwrap().free;
    let mut loader = devices::loader(&(device, options), 16);
    let before = (faults.live(), faults.calls(Call::CopyToDevice));

    // Only the shape matters, and nothing is read.
    let view =
        TensorView { name: "huge", ggml_type: GgmlType::F16, rows: 1 << 20, cols: 1 << 12, data: &[], scales: &[] };
    let weights = loader.reserve_weights(&[Upload::Matrix(vec![LinearPart { weight: view, bias: None }])], 0);
    let (kind, dtype) = (GroupKind::Full, KvCacheDtype::F16);
    let spec = KvLayerSpec {
        kind,
        skips_first: false,
        num_blocks: 1 << 20,
        block_size: 16,
        num_kv_heads: 8,
        head_dim: 128,
        latent: None,
        dtype,
    };
    let cache = loader.alloc_kv_layers(&[spec]).map(|_| ());
    for (result, bytes, help) in [(weights, 1 << 33, "smaller model"), (cache, 1 << 36, "kv_cache_memory")] {
        let Err(Error::OutOfMemory { requested, available, advice, .. }) = result else { panic!("{result:?}") };
        assert!(requested >= bytes && available < free, "{requested} of {available}");
        assert!(advice.contains(help), "{advice}");
    }
    assert_eq!((faults.live(), faults.calls(Call::CopyToDevice)), before);
}

/// G8, G13: threads that have never used the device can open the driver at the same time, and each can use it.
#[test]
fn threads_open_the_driver_at_once() {
    std::thread::scope(|scope| {
        for byte in 1..9 {
            scope.spawn(move || {
                let Some((device, _)) = devices::open(CPU_TARGETS[2]) else { return };
                let (stream, buffer) = (Stream::new(&device).unwrap(), DeviceBuffer::new(&device, 4096).unwrap());
                let mut host = HostBuffer::new(&device, 4096).unwrap();
                // SAFETY: all of them live until the stream was waited for.
                unsafe {
                    stream.fill(buffer.slice(), byte).unwrap();
                    stream.copy_to_host(host.as_mut_slice(), buffer.slice()).unwrap();
                }
                stream.synchronize().unwrap();
                assert_eq!(host.as_slice(), [byte; 4096]);
            });
        }
    });
}
