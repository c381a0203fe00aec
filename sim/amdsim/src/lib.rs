//! Executes AMD GPU machine code on the CPU.
//!
//! [`CodeObject::load`] takes an ELF file of clang, hipcc or hipRTC. [`run`] executes one of its kernels, wave by wave,
//! on a [`Memory`] that the caller owns and that decides which addresses exist. The crate's README describes what the
//! simulator can and cannot show, and how to add an instruction.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod abi;
mod code_object;
mod coherence;
mod context;
mod decode;
mod disassembly;
mod error;
mod float;
mod lane;
mod launch;
mod launch_args;
mod operand;
mod syntax;
mod target;
mod wave;

pub use code_object::CodeObject;
pub use code_object::kernel::{Kernel, KernelArg};
pub use coherence::{Coherence, ScalarCache};
pub use error::{Access, Fault, LoadError, Space, Trap};
pub use launch::{Stats, run, run_after};
pub use launch_args::{Launch, Order};

/// Global memory, as its owner sees it.
///
/// The simulator never asks for addresses in [`RESERVED_ADDRESSES`], which hold its own data.
pub trait Memory {
    /// Returns the allocation around an address: its start and its bytes. `None` outside of all allocations. No access
    /// goes past these bytes, so the owner decides which addresses exist.
    fn around(&mut self, address: u64) -> Option<(u64, &mut [u8])>;
}

/// The addresses of the code object, the arguments, and the apertures of LDS and scratch. The caller's allocations must
/// lie outside.
pub const RESERVED_ADDRESSES: std::ops::Range<u64> = 0x6a00_0000_0000..0x6b00_0000_0000;
