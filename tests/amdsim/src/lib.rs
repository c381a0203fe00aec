//! Executes AMD GPU machine code on the CPU.
//!
//! [`CodeObject::load`] takes the ELF file that clang, hipcc or hipRTC writes; [`run`] executes one of its kernels, wave
//! by wave, on a [`Memory`] that the caller owns and that decides which addresses exist. See the crate's README for what
//! it can and cannot show, and for how an instruction is added.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod code_object;
mod elf;
mod error;
mod kernel;
mod launch;
mod msgpack;

pub use code_object::CodeObject;
pub use error::{Access, Fault, LoadError, OutOfBounds, Space, Trap};
pub use kernel::{Kernel, KernelArg};
pub use launch::{Launch, Order, Stats, run};

/// Global memory, as its owner sees it. Every access of a kernel comes here, so the owner does the bounds checks.
///
/// Addresses from [`RESERVED_ADDRESSES`] are never asked for: the simulator keeps there what it owns itself.
pub trait Memory {
    fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), OutOfBounds>;
    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), OutOfBounds>;
}

/// Where a kernel sees its code object, its arguments, and the apertures of LDS and scratch. Allocations of the caller
/// must lie outside.
pub const RESERVED_ADDRESSES: std::ops::Range<u64> = 0x6a00_0000_0000..0x6b00_0000_0000;
