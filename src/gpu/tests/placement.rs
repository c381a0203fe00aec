//! The room for weights that a GPU does not hold.

use crate::Device;
use crate::Error;
use crate::backend::host_memory::HostMemory;
use crate::backend::{LinearPart, Loader, Reserve, Role, Upload};
use crate::config::{ComputeDtype, GpuOptions};
use crate::driver;
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::testing::devices::{self, CPU_TARGETS};

const MIB: u64 = 1 << 20;

/// A matrix of 64 MiB. Only its shape matters, and nothing is read.
fn matrix() -> Upload<'static> {
    let (ggml_type, rows, cols) = (GgmlType::F16, 1 << 13, 1 << 12);
    let weight = TensorView { name: "large", ggml_type, rows, cols, data: &[], scales: &[] };
    Upload::Matrix(vec![LinearPart { weight, bias: None }])
}

/// G24: weights that neither the device nor the host has room for are refused before anything is allocated. The error
/// names what is missing, and where.
#[test]
fn weights_without_any_room_are_refused() {
    let Some((_, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let root = std::env::temp_dir().join(format!("rocmforge-host-room-{}", std::process::id()));
    std::fs::create_dir_all(root.join("proc")).unwrap();
    let place = |host_mib: u64, least_mib: u64, options: GpuOptions| {
        std::fs::write(root.join("proc/meminfo"), format!("MemAvailable: {} kB\n", host_mib << 10)).unwrap();
        let device = Device::on_host(driver::open(&options).unwrap(), HostMemory::under(&root));
        let options = GpuOptions { memory_limit: Some(700 * MIB), ..options };
        let mut loader = devices::loader(&(device.clone(), options), 16);
        let uploads: Vec<_> = (0..8).map(|_| matrix()).collect();
        let roles: Vec<_> = (0..8).map(|layer| Role::Layer { layer }).collect();
        let least = least_mib * MIB;
        let placed = loader.place(&uploads, &roles, Reserve { least, wanted: least });
        assert_eq!(device.allocated_bytes(), 0);
        placed.map(|()| loader.room_beside(&uploads).unwrap())
    };
    // Less than 444 MiB remain beside the margin, for the workspace, 128 MiB and three of eight matrices. The host
    // keeps 2 GiB for itself.
    let room = place(2048 + 320, 128, options.clone()).unwrap();
    assert!((128 * MIB..192 * MIB).contains(&room), "{room}");
    let refused = place(2048 + 319, 128, options.clone());
    let Err(Error::OutOfMemory { what, requested, available, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!((requested, available), (320 * MIB, 319 * MIB));
    assert!(what.contains("page-locked memory") && what.contains("cpu-wave32"), "{what}");
    let Err(Error::OutOfMemory { what, advice, .. }) = place(9000, 440, options.clone()) else { panic!() };
    assert!(what.contains("activations, the KV cache") && advice.contains("max_model_len"), "{what}; {advice}");
    let by_hand = GpuOptions { layers: Some(8), ..options.clone() };
    let Err(Error::OutOfMemory { advice, .. }) = place(9000, 1, by_hand) else { panic!() };
    assert!(advice.contains("lower gpu_layers"), "{advice}");
    let fp8 = GpuOptions { compute_dtype: ComputeDtype::Fp8, ..options };
    let Err(Error::InvalidRequest { what, .. }) = place(9000, 1, fp8) else { panic!() };
    assert_eq!(what, "compute_dtype");
    std::fs::remove_dir_all(root).unwrap();
}
