//! Loaded code objects and the kernels in them.

use amdsim::CodeObject;

use crate::cpu::{self, CpuObject};
use crate::log::say;
use crate::status::{Result, Status};
use crate::target::Target;

pub(crate) enum Module {
    /// AMD machine code, executed by the simulator.
    Amd(CodeObject),
    /// A shared object of the CPU, executed natively.
    Cpu(&'static CpuObject),
}

/// The properties of a kernel that a launch needs.
#[derive(Debug, Clone)]
pub(crate) struct KernelInfo {
    pub max_threads: u32,
    /// Bytes of shared memory, of private memory, and registers of a thread.
    pub shared_bytes: u32,
    pub private_bytes: u32,
    pub registers: u32,
    /// Offset and size of each explicit argument.
    pub arguments: Vec<(usize, usize)>,
}

impl KernelInfo {
    pub(crate) fn argument_bytes(&self) -> usize {
        self.arguments.iter().map(|(offset, size)| offset + size).max().unwrap_or(0)
    }
}

const MACHINE_AMDGPU: u16 = 224;

impl Module {
    pub(crate) fn load(image: &[u8], target: &Target) -> Result<Self> {
        let machine = image.get(18..20).map(|field| u16::from_le_bytes([field[0], field[1]]));
        if machine == Some(MACHINE_AMDGPU) {
            let object = CodeObject::load(image).map_err(|error| {
                say(format_args!("hipModuleLoadData: {error}"));
                Status::INVALID_IMAGE
            })?;
            if !target.runs(object.target()) {
                say(format_args!("hipModuleLoadData: code for {} on a {}", object.target(), target.name));
                return Err(Status::NO_BINARY_FOR_GPU);
            }
            return Ok(Self::Amd(object));
        }
        if !target.is_cpu() {
            say(format_args!("hipModuleLoadData: not an AMDGPU code object, on a {}", target.name));
            return Err(Status::NO_BINARY_FOR_GPU);
        }
        let object = cpu::load(image).map_err(|error| {
            say(format_args!("hipModuleLoadData: {error}"));
            Status::INVALID_IMAGE
        })?;
        if object.wave_size() != target.wave_size {
            say(format_args!("hipModuleLoadData: code for waves of {} on {}", object.wave_size(), target.name));
            return Err(Status::NO_BINARY_FOR_GPU);
        }
        Ok(Self::Cpu(object))
    }

    pub(crate) fn kernel(&self, name: &str) -> Option<KernelInfo> {
        match self {
            Self::Amd(object) => object.kernel(name).map(|kernel| KernelInfo {
                max_threads: kernel.max_workgroup_size,
                shared_bytes: kernel.group_segment_size,
                private_bytes: kernel.private_segment_size,
                registers: kernel.vgprs,
                arguments: explicit_arguments(kernel),
            }),
            Self::Cpu(object) => object.kernel(name).map(|kernel| KernelInfo {
                max_threads: kernel.threads,
                shared_bytes: 0,
                private_bytes: 0,
                registers: 0,
                arguments: vec![(0, kernel.argument_bytes as usize)],
            }),
        }
    }
}

fn explicit_arguments(kernel: &amdsim::Kernel) -> Vec<(usize, usize)> {
    let explicit = kernel.args.iter().filter(|arg| !arg.is_hidden());
    explicit.map(|arg| (arg.offset as usize, arg.size as usize)).collect()
}
