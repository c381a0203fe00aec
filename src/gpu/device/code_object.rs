//! Loaded code objects and their kernels.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use super::Device;
use crate::config::Platform;
use crate::driver::{Block, DeviceProperties};
use crate::sys::{FunctionHandle, ModuleHandle};
use crate::{Error, Result};

/// The arguments of a kernel, or one of them: plain numbers in the kernel's layout.
///
/// # Safety
/// The type is `repr(C)` and mirrors a struct of kernels/args.h, or it is one of their numbers.
pub unsafe trait KernelArgs: Copy {
    /// Writes each number at its place in the struct and leaves the padding alone. A copy of the struct itself would
    /// also copy stale stack bytes.
    fn store(&self, bytes: &mut [u8]);
}

/// The argument struct of a launch, with zeros in its padding.
#[repr(C, align(16))]
pub(crate) struct ArgBytes([u8; Self::MOST]);

impl ArgBytes {
    /// Bytes of the largest struct.
    const MOST: usize = 304;

    pub(crate) fn new<A: KernelArgs>(args: &A) -> Self {
        const { assert!(size_of::<A>() <= Self::MOST && align_of::<A>() <= align_of::<Self>()) };
        let mut bytes = [0; Self::MOST];
        args.store(&mut bytes);
        Self(bytes)
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.0.as_ptr().cast()
    }
}

/// A loaded code object. Its drop does not wait, so it must be kept until its kernels have run.
pub struct Module {
    device: Device,
    handle: ModuleHandle,
    /// AMD's runtime gives profilers and debuggers the address of this image while the module is loaded.
    _image: Vec<u8>,
}

/// A kernel, which keeps its module loaded.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    handle: FunctionHandle,
    name: Arc<str>,
    block: Block,
}

impl Module {
    /// Loads a code object (AMD) or cubin (NVIDIA); `what` names it in errors.
    pub fn load(device: &Device, image: Vec<u8>, what: &str) -> Result<Arc<Self>> {
        device.check()?;
        // The drivers take no size: they read it from this header.
        if !image.starts_with(b"\x7fELF") {
            return Err(Error::internal(format!("{what}: {} bytes that are no ELF file", image.len())));
        }
        let handle = device.call(|driver| driver.load_module(&image)).map_err(|error| in_context(error, what))?;
        Ok(Arc::new(Self { device: device.clone(), handle, _image: image }))
    }

    /// Returns a kernel by name, for blocks of this size.
    ///
    /// # Errors
    /// `Error::Device` if the module has no such kernel or the device cannot run it with such blocks.
    pub fn function(self: &Arc<Self>, name: &str, block: Block) -> Result<Function> {
        let device = &self.device;
        let problem = |problem: String| Error::Device { device: device.label().into(), problem };
        let symbol = CString::new(name).map_err(Error::internal)?;
        // SAFETY: the module is loaded.
        let handle = device
            .call(|driver| unsafe { driver.function(self.handle, &symbol) })
            .map_err(|error| in_context(error, name))?;
        // Drivers have returned success with a null pointer; launching that would crash.
        if handle == FunctionHandle::NULL {
            return Err(problem(format!("kernel {name}: found, but as a null pointer")));
        }
        // SAFETY: the handle is the module's.
        let most =
            device.call(|driver| unsafe { driver.max_threads(handle) }).map_err(|error| in_context(error, name))?;
        let Block { threads, shared_bytes } = block;
        if most < threads {
            return Err(problem(format!("kernel {name} was compiled for at most {most} threads, not {threads}")));
        }
        if shared_bytes > 0 {
            // SAFETY: the handle is the module's.
            let allowed = device.call(|driver| unsafe { driver.allow_shared_bytes(handle, shared_bytes) });
            allowed.map_err(|error| in_context(error, name))?;
        }
        Ok(Function { module: Arc::clone(self), handle, name: name.into(), block })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, this is the last owner.
        self.device.release(|driver| unsafe { driver.unload_module(self.handle) });
    }
}

impl Function {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn block(&self) -> Block {
        self.block
    }

    pub fn device(&self) -> &Device {
        &self.module.device
    }

    pub(crate) fn handle(&self) -> FunctionHandle {
        self.handle
    }

    /// Adds the kernel's name to an error of its launch.
    pub(super) fn name_in(&self, error: Error) -> Error {
        in_context(error, &self.name)
    }

    pub(super) fn check_grid(&self, properties: &DeviceProperties, grid: [u32; 3]) -> Result<()> {
        check_grid(properties, grid, self.block.threads)
            .map_err(|problem| Error::internal(format!("kernel {} on a grid of {grid:?}: {problem}", self.name)))
    }
}

/// Checks the driver's limits before the call, because the driver's message does not name the exceeded limit.
fn check_grid(properties: &DeviceProperties, grid: [u32; 3], threads: u32) -> std::result::Result<(), String> {
    let most = properties.max_grid;
    if threads == 0 || threads > properties.max_threads_per_block {
        return Err(format!("{threads} threads a block, the device allows 1 to {}", properties.max_threads_per_block));
    }
    if grid.contains(&0) || (0..3).any(|axis| grid[axis] > most[axis]) {
        return Err(format!("every side must be 1 to {most:?}"));
    }
    // On AMD a launch counts threads instead of blocks along each axis, in 32 bits.
    if properties.platform == Platform::Amd && u64::from(grid[0]) * u64::from(threads) > u64::from(u32::MAX) {
        return Err(format!("with {threads} threads a block it has more than 2^32 threads along x"));
    }
    Ok(())
}

fn in_context(error: Error, what: &str) -> Error {
    match error {
        Error::Device { device, problem } => Error::Device { device, problem: format!("{what}: {problem}") },
        Error::EngineDead { reason } => Error::EngineDead { reason: format!("{what}: {reason}") },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::fake;

    /// G15: blocks and grids that a device cannot run are refused, on both platforms, at the exact limits.
    #[test]
    fn launch_limits() {
        let mut properties = fake::properties();
        properties.max_grid = [u32::MAX >> 1, 65535, 65535];
        properties.max_threads_per_block = 1024;
        let refused = |properties: &DeviceProperties, grid, threads| check_grid(properties, grid, threads).is_err();
        for (grid, threads) in [([1, 1, 1], 1), ([7, 65535, 65535], 1024), ([(u32::MAX - 255) / 256, 1, 1], 256)] {
            assert!(!refused(&properties, grid, threads), "{grid:?} {threads}");
        }
        let bad = [
            ([0, 1, 1], 256),
            ([1, 0, 1], 256),
            ([1, 1, 0], 256),
            ([1, 65536, 1], 256),
            ([1, 1, 65536], 256),
            ([1 << 31, 1, 1], 1),
            ([1, 1, 1], 0),
            ([1, 1, 1], 1025),
            ([1 << 24, 1, 1], 256),
        ];
        for (grid, threads) in bad {
            assert!(refused(&properties, grid, threads), "{grid:?} {threads}");
        }
        properties.platform = Platform::Nvidia;
        assert!(!refused(&properties, [1 << 24, 1, 1], 256));
    }
}
