//! Errors: a code object that cannot be loaded, or a launch that cannot continue.

use std::fmt;

/// The reason why a code object was not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("not an AMDGPU code object: {0}")]
    Format(&'static str),
    #[error("target {0} is not known: amdsim knows gfx9, gfx10, gfx11 and gfx12")]
    Target(String),
    #[error("cannot run {program}: {source} (Debian: apt-get install llvm-22, or name one in ROCMFORGE_LLVM_OBJDUMP)")]
    Disassembler { program: String, source: std::io::Error },
    #[error("{program} failed: {message}")]
    Disassembly { program: String, message: String },
    #[error("this processor has no AVX2, FMA and F16C, which amdsim is compiled for on x86-64")]
    Processor,
}

/// The access is not inside any allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfBounds;

/// The reason why a wave stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    #[error("{space} {access} of {bytes} bytes at {address:#x} is out of bounds (lane {lane})")]
    OutOfBounds { space: Space, access: Access, address: u64, bytes: usize, lane: usize },
    #[error("not supported by amdsim: {0}")]
    Unsupported(String),
    #[error("jump to {0:#x}, where no instruction starts")]
    Jump(u64),
    #[error("{0} instructions by one wave: it does not end")]
    Endless(u64),
    #[error("the kernel executed s_trap")]
    Trapped,
    #[error("launch: {0}")]
    Launch(String),
}

/// The memory of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Global,
    Lds,
    Scratch,
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Load,
    Store,
    Atomic,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Global => "global",
            Space::Lds => "LDS",
            Space::Scratch => "scratch",
        })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Load => "load",
            Access::Store => "store",
            Access::Atomic => "atomic",
        })
    }
}

/// A stopped launch: location and reason.
#[derive(Clone, Debug)]
pub struct Trap {
    pub kernel: String,
    /// Address of the instruction in the code object, as `llvm-objdump` prints it.
    pub address: u64,
    /// The instruction's text; empty if the launch itself was refused.
    pub instruction: String,
    pub workgroup: [u32; 3],
    pub wave: usize,
    pub fault: Fault,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kernel, self.fault)?;
        if self.instruction.is_empty() {
            return Ok(());
        }
        let [x, y, z] = self.workgroup;
        write!(f, "; {:#x}: {} [workgroup {x},{y},{z} wave {}]", self.address, self.instruction, self.wave)
    }
}

impl std::error::Error for Trap {}
