//! What this machine offers: devices, instruction sets, and the kernel that serves each tensor type.

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
