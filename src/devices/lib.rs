//! Opens the device that the settings name, and provides its defaults and its loader. Code that loads a model names no
//! device.
//!
//! `open` chooses between CPU and GPU. `OpenDevice::load` calls code that works with any loader (`UseLoader`), so a
//! model is compiled for each device here, and nowhere above. `cores` counts the cores for threads beside a GPU.
//!
//! This is the only crate that knows both devices, `rocmforge_cpu` and `rocmforge_gpu`, but for reports and tests. The
//! engine knows this crate and the traits of `rocmforge_backend`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod cores;

use cores::physical_cores;
use rocmforge_backend::{Loader, StepLimits};
use rocmforge_config::{ComputeDtype, DeviceKind, EngineArgs, defaults};
use rocmforge_core::{Error, Result};
use rocmforge_cpu::{CpuLoader, Isa};
use rocmforge_gpu::{Device, GpuLoader};

/// An opened device.
#[derive(Clone)]
pub enum OpenDevice {
    Cpu,
    Gpu(Device),
}

/// Opens the device that the arguments name. For "auto" without a GPU it takes the CPU and logs the reason.
///
/// # Errors
/// `Error::Device` if the arguments ask for a GPU and none is usable.
pub fn open(args: &EngineArgs) -> Result<OpenDevice> {
    if args.device == DeviceKind::Cpu {
        return Ok(OpenDevice::Cpu);
    }
    match Device::open(&args.gpu) {
        Ok(device) => Ok(OpenDevice::Gpu(device)),
        Err(error) if args.device == DeviceKind::Gpu => Err(error),
        Err(reason) => {
            tracing::info!("running on the CPU: {reason}");
            Ok(OpenDevice::Cpu)
        }
    }
}

/// Returns the number of CPU threads: the requested number, or the cores available to the process.
///
/// # Errors
/// `Error::Device` if the number of cores is unknown.
pub fn resolve_threads(args: &EngineArgs) -> Result<usize> {
    match args.num_threads {
        Some(n) => Ok(n),
        None => std::thread::available_parallelism().map(usize::from).map_err(|e| Error::Device {
            device: "cpu".to_owned(),
            problem: format!("the number of cores is unknown ({e}); set num_threads"),
        }),
    }
}

/// Returns the number of CPU threads next to a GPU: the requested number, or one less than the physical cores. The
/// engine's thread has the last core. Threads that share a core would only share its path to memory.
fn threads_beside_gpu(args: &EngineArgs) -> Result<usize> {
    let threads = resolve_threads(args)?;
    match args.num_threads {
        Some(_) => Ok(threads),
        None => Ok((physical_cores().unwrap_or(threads).min(threads) - 1).max(1)),
    }
}

/// Returns the instruction set that the arguments name, otherwise the best of this CPU.
///
/// # Errors
/// `InvalidRequest` if this CPU has none with this name.
pub fn resolve_isa(args: &EngineArgs) -> Result<Isa> {
    let Some(name) = &args.cpu_isa else { return Ok(Isa::detect()) };
    Isa::from_name(name).ok_or_else(|| {
        let names: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
        Error::invalid("CPU instruction set", name, format!("one that this CPU has: {}", names.join(", ")))
    })
}

/// Code that uses a loader and works with any device.
pub trait UseLoader {
    type Output;

    fn with<L: Loader>(self, loader: L) -> Result<Self::Output>;
}

impl OpenDevice {
    /// Names the way in which the device computes and stores keys, values and states. Another instruction set may
    /// round differently.
    ///
    /// # Errors
    /// `InvalidRequest` for an instruction set that this CPU lacks.
    pub fn layout(&self, args: &EngineArgs) -> Result<String> {
        Ok(match self {
            Self::Cpu => format!("cpu {}", resolve_isa(args)?.name()),
            Self::Gpu(device) => format!("gpu {}", device.properties().arch),
        })
    }

    /// Returns the number of CPU threads that compute.
    ///
    /// # Errors
    /// See `resolve_threads`.
    pub fn num_threads(&self, args: &EngineArgs) -> Result<usize> {
        match self {
            Self::Cpu => resolve_threads(args),
            Self::Gpu(_) => threads_beside_gpu(args),
        }
    }

    /// Returns the default number of tokens per step.
    pub fn default_batched_tokens(&self) -> usize {
        match self {
            Self::Cpu => defaults::CPU_BATCHED_TOKENS,
            Self::Gpu(_) => defaults::GPU_BATCHED_TOKENS,
        }
    }

    /// Returns the default number of sequences per step.
    pub fn default_seqs(&self) -> usize {
        match self {
            Self::Cpu => defaults::CPU_SEQS,
            Self::Gpu(_) => defaults::GPU_SEQS,
        }
    }

    /// Returns the default size of the KV pool in bytes, given the available bytes.
    pub fn default_kv_cache_bytes(&self, available: u64) -> u64 {
        let percent_of_it = |percent| available / 100 * percent;
        match self {
            Self::Cpu => defaults::CPU_KV_CACHE_BYTES.min(percent_of_it(defaults::CPU_KV_CACHE_PERCENT)),
            Self::Gpu(device) if device.properties().integrated => {
                percent_of_it(defaults::INTEGRATED_GPU_KV_CACHE_PERCENT)
            }
            Self::Gpu(_) => percent_of_it(defaults::GPU_KV_CACHE_PERCENT),
        }
    }

    /// Calls `user` with a loader for steps within `limits`.
    ///
    /// # Errors
    /// `InvalidRequest` for an instruction set that this CPU lacks, or for products that it does not compute.
    /// `Error::Device`, and errors of `user`.
    pub fn load<U: UseLoader>(&self, args: &EngineArgs, limits: StepLimits, user: U) -> Result<U::Output> {
        match self {
            Self::Cpu => {
                if args.gpu.compute_dtype != ComputeDtype::Auto {
                    let expected = "'auto' on the CPU, whose products are those of 8-bit whole numbers, or a GPU";
                    return Err(Error::invalid("compute_dtype", args.gpu.compute_dtype.name(), expected));
                }
                let loader = CpuLoader::new(self.num_threads(args)?, limits.tokens)?;
                user.with(loader.with_isa(resolve_isa(args)?))
            }
            Self::Gpu(device) => {
                let loader = GpuLoader::new(device.clone(), &args.gpu, limits)?;
                user.with(loader.with_cpu(self.num_threads(args)?, resolve_isa(args)?))
            }
        }
    }
}
