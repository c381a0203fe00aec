//! Devices and instruction sets of this machine, and the kernel that serves each tensor type.

use crate::Result;
use crate::backend::LinearPart;
use crate::config::{DeviceKind, EngineArgs, Platform};
use crate::cpu::linear::{PackedMatrix, WeightMemory};
use crate::cpu::pool::ThreadPool;
use crate::cpu::simd::Isa;
use crate::engine::LoadProgress;
use crate::gpu::{
    Device, KernelRow, Survey, embedded_targets, graph_capture, kernel_rows, matrix_library, system_lines,
};
use crate::quant::{GgmlType, can_dequantize};
use crate::tensor::TensorView;

/// Which kernel serves an operation on weights of a type on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelInUse {
    pub tensor_type: &'static str,
    pub op: &'static str,
    pub kernel: &'static str,
}

/// One row per tensor type that can be computed with, and one for the operations on activations.
///
/// # Errors
/// Errors of packing a small matrix of each type, which is how the choice is asked for.
pub fn cpu_kernels() -> Result<Vec<KernelInUse>> {
    let pool = ThreadPool::new(1)?;
    let mut kernels = vec![KernelInUse {
        tensor_type: "F32 activations",
        op: "norm, rope, attention, activation",
        kernel: Isa::detect().name(),
    }];
    for ggml_type in (0..=u32::from(u8::MAX)).filter_map(GgmlType::from_id).filter(|&t| can_dequantize(t)) {
        kernels.extend(kernel_of(ggml_type, &pool)?);
    }
    Ok(kernels)
}

/// Packs zeros: one row of a few blocks.
fn kernel_of(ggml_type: GgmlType, pool: &ThreadPool) -> Result<Option<KernelInUse>> {
    let cols = PROBE_COLS.next_multiple_of(ggml_type.block_elements());
    let data = vec![0; ggml_type.row_bytes(cols).unwrap_or(0)];
    let weight = TensorView { name: "probe", ggml_type, rows: 1, cols, data: &data, scales: &[] };
    let parts = [LinearPart { weight, bias: None }];
    let mut memory = WeightMemory::default();
    let matrix = PackedMatrix::pack(Isa::detect(), &parts, &mut memory, pool, &mut |_| Ok(()))?;
    let name = matrix.kernels().first().map(|&(_, kernel)| kernel);
    Ok(name.map(|kernel| KernelInUse { tensor_type: ggml_type.name(), op: "linear", kernel }))
}

/// The GPU that is asked for, or that `device="gpu"` would use.
pub struct Gpu {
    pub platform: Platform,
    /// Index among the platform's devices.
    pub index: u32,
    /// Description in one line.
    pub detail: String,
    /// The family of GPUs whose numbers kernels are launched by, and whether they were measured.
    pub tuned_as: String,
    pub kernels: Vec<KernelRow>,
    /// The vendor's matrix library and what it is used for, or why it is not.
    pub matrix_library: String,
    /// States that decode steps are captured, or why they are not.
    pub decode_steps: String,
}

/// Opens the GPU and loads every kernel, compiling those that this build has no code of. `progress` counts units of
/// compilation and says whether to go on.
///
/// # Errors
/// `Device` if there is none, which says what was tried; errors of environment variables; `Interrupted`.
pub fn gpu(args: &EngineArgs, progress: &mut dyn FnMut(LoadProgress) -> bool) -> Result<Gpu> {
    let options = args.clone().with_env()?.gpu;
    let device = Device::open(&options)?;
    let properties = device.properties();
    let memory = device.memory_info()?;
    let detail = format!(
        "{} ({}, {}), {} multiprocessors, {:.1} of {:.1} GB free",
        properties.name,
        properties.arch,
        properties.driver,
        properties.multiprocessors,
        memory.free as f64 / 1e9,
        memory.total as f64 / 1e9,
    );
    let count = |n: usize| n as u64;
    let kernels = kernel_rows(&device, &options, &mut |done, total| {
        progress(LoadProgress { done: count(done), total: count(total) })
    })?;
    let (platform, index) = (properties.platform, properties.index);
    let (matrix_library, decode_steps) = (matrix_library(&device, &options), graph_capture(&device, &options));
    let others = if options.tuning.is_empty() { "" } else { ", with the numbers of ROCMFORGE_TUNING" };
    let tuned_as = format!("{}{others}", device.tuned_as());
    Ok(Gpu { platform, index, detail, tuned_as, kernels, matrix_library, decode_steps })
}

/// Every GPU of every installed driver, and the problem of each driver that cannot be used. AMD's driver is probed
/// again, since a stored verdict may be outdated.
///
/// # Errors
/// Errors of the environment variables.
pub fn gpus(args: &EngineArgs) -> Result<Vec<Survey>> {
    let options = args.clone().with_env()?.gpu;
    Device::probe_anew(&options);
    Ok(Device::survey(&options))
}

/// Facts of the system that decide if AMD's library finds a GPU, a line each; none where AMD is not asked for.
///
/// # Errors
/// See `gpus`.
pub fn system(args: &EngineArgs) -> Result<Vec<String>> {
    let options = args.clone().with_env()?.gpu;
    let is_amds = args.device != DeviceKind::Cpu && options.platform != Some(Platform::Nvidia);
    Ok(if is_amds { system_lines(&options) } else { Vec::new() })
}

/// The targets of AMD GPUs that this build carries code for; on others the kernels are compiled when they are needed.
pub fn embedded_kernels() -> impl Iterator<Item = &'static str> {
    embedded_targets()
}

/// Resolves the device that an argument or the environment asked for; "none" where that is an error.
pub fn taken_device(asked: DeviceKind, gpu_is_usable: bool) -> &'static str {
    match asked {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Auto | DeviceKind::Gpu if gpu_is_usable => "gpu",
        DeviceKind::Auto => "cpu",
        DeviceKind::Gpu => "none",
    }
}

/// A multiple of every block that has a kernel.
const PROBE_COLS: usize = 256;

/// An instruction-set extension that a kernel could use, and whether this processor has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuFeature {
    pub name: &'static str,
    pub available: bool,
}

/// The extensions that the CPU kernels are written for.
#[cfg(target_arch = "x86_64")]
pub fn cpu_features() -> Vec<CpuFeature> {
    macro_rules! features {
        ($($name:tt),*) => { vec![$(CpuFeature { name: $name, available: is_x86_feature_detected!($name) }),*] };
    }
    features!("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16")
}

/// The extensions that the CPU kernels are written for.
#[cfg(target_arch = "aarch64")]
pub fn cpu_features() -> Vec<CpuFeature> {
    macro_rules! features {
        ($($name:tt),*) => {
            vec![$(CpuFeature { name: $name, available: std::arch::is_aarch64_feature_detected!($name) }),*]
        };
    }
    features!("neon", "dotprod", "i8mm", "fp16")
}

/// The extensions that the CPU kernels are written for: none on this architecture, whose kernels are scalar.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn cpu_features() -> Vec<CpuFeature> {
    Vec::new()
}
