//! A loaded code object.

use crate::elf::Elf;
use crate::{Kernel, LoadError, msgpack};

/// An AMDGPU code object, disassembled and ready to run. Instructions are decoded when they are first executed.
pub struct CodeObject {
    target: String,
    kernels: Vec<Kernel>,
}

impl CodeObject {
    /// Reads an ELF code object and has it disassembled by `llvm-objdump` (`ROCMFORGE_LLVM_OBJDUMP`, else version 22 or
    /// newer in the path), once.
    pub fn load(file: &[u8]) -> Result<Self, LoadError> {
        let elf = Elf::parse(file)?;
        let metadata = msgpack::decode(elf.metadata).ok_or(LoadError::Format("the metadata is not MessagePack"))?;
        let target = metadata.text("amdhsa.target").ok_or(LoadError::Format("the metadata names no target"))?;
        // "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"
        let target = target.split("--").last().and_then(|t| t.split(':').next()).unwrap_or(target).to_owned();
        let kernels = metadata.list("amdhsa.kernels").iter().map(|k| Kernel::read(&elf, k)).collect::<Result<_, _>>()?;
        Ok(Self { target, kernels })
    }

    /// The target without its features: `gfx90a`, `gfx11-generic`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// 32 or 64, the same for every kernel; 0 when there is no kernel.
    pub fn wavefront_size(&self) -> u32 {
        self.kernels.first().map_or(0, |kernel| kernel.wavefront_size)
    }

    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter()
    }
}
