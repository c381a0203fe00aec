//! The devices that an engine can run on: which one the arguments name, what it does unless they say otherwise, and
//! its loader. Whoever loads a model needs to name none of them.

use super::Loader;
use super::cpu::{CpuLoader, Isa};
use super::gpu::{Device, GpuLoader};
use super::specs::StepLimits;
use crate::config::{ComputeDtype, DeviceKind, EngineArgs, defaults};
use crate::{Error, Result};

/// A device, opened.
#[derive(Clone)]
pub enum OpenDevice {
    Cpu,
    Gpu(Device),
}

/// The device that the arguments name. "auto" takes the CPU where there is no GPU, and says why.
///
/// # Errors
/// `Error::Device` where a GPU is asked for that is not usable.
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

/// Threads of the engine: as asked for, else the cores that the system gives it.
///
/// # Errors
/// `Error::Device` where their number is not known.
pub fn resolve_threads(args: &EngineArgs) -> Result<usize> {
    match args.num_threads {
        Some(n) => Ok(n),
        None => std::thread::available_parallelism().map(usize::from).map_err(|e| Error::Device {
            device: "cpu".to_owned(),
            problem: format!("the number of cores is unknown ({e}); set num_threads"),
        }),
    }
}

/// A use of a device's loader, whichever device it is.
pub trait UseLoader {
    type Output;

    fn with<L: Loader>(self, loader: L) -> Result<Self::Output>;
}

impl OpenDevice {
    /// Tokens of a step by default.
    pub fn default_batched_tokens(&self) -> usize {
        match self {
            Self::Cpu => defaults::CPU_BATCHED_TOKENS,
            Self::Gpu(_) => defaults::GPU_BATCHED_TOKENS,
        }
    }

    /// Sequences of a step by default.
    pub fn default_seqs(&self) -> usize {
        match self {
            Self::Cpu => defaults::CPU_SEQS,
            Self::Gpu(_) => defaults::GPU_SEQS,
        }
    }

    /// Bytes of the KV pool by default, of those that are available.
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

    /// Gives `user` a loader for steps of at most `limits`.
    ///
    /// # Errors
    /// `InvalidRequest` for an instruction set that this CPU does not have, or products that it does not compute;
    /// `Error::Device`; those of `user`.
    pub fn load<U: UseLoader>(&self, args: &EngineArgs, limits: StepLimits, user: U) -> Result<U::Output> {
        match self {
            Self::Cpu => {
                if args.gpu.compute_dtype != ComputeDtype::Auto {
                    let expected = "'auto' on the CPU, whose products are those of 8-bit whole numbers, or a GPU";
                    return Err(Error::invalid("compute_dtype", args.gpu.compute_dtype.name(), expected));
                }
                let loader = CpuLoader::new(resolve_threads(args)?, limits.tokens)?;
                user.with(match &args.cpu_isa {
                    Some(name) => loader.with_isa(Isa::from_name(name)?),
                    None => loader,
                })
            }
            Self::Gpu(device) => user.with(GpuLoader::new(device.clone(), &args.gpu, limits)?),
        }
    }
}
