//! Queues the engine's kernels on its one stream, and holds the numbers that every plan of a launch depends on.

use super::functions::Functions;
use super::kernel::{Kernel, Variant};
use super::tuning::Tuning;
use super::{Function, KernelArgs, Stream};
use crate::Result;

pub struct Launcher {
    stream: Stream,
    functions: Functions,
    multiprocessors: u32,
    tuning: Tuning,
}

impl Launcher {
    pub fn new(stream: Stream, functions: Functions, tuning: Tuning) -> Self {
        let multiprocessors = stream.device().properties().multiprocessors;
        Self { stream, functions, multiprocessors, tuning }
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether the model's kernels have this one.
    pub fn has<A>(&self, kernel: Kernel<A>, variant: impl Into<Variant>) -> bool {
        self.functions.has(kernel, variant)
    }

    /// Returns a kernel that was loaded with the model.
    ///
    /// # Errors
    /// See `Functions::get`.
    pub fn function<A>(&self, kernel: Kernel<A>, variant: impl Into<Variant>) -> Result<&Function> {
        self.functions.get(kernel, variant)
    }

    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The numbers that every plan of a launch is made of.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Queues a kernel, with the arguments that the table says it takes.
    ///
    /// # Errors
    /// See `Functions::get` and `Stream::launch`.
    ///
    /// # Safety
    /// The conditions of `Stream::launch` hold; that the arguments are the kernel's follows from the types.
    pub unsafe fn launch<A: KernelArgs>(
        &self,
        kernel: Kernel<A>,
        variant: impl Into<Variant>,
        grid: [u32; 3],
        args: &A,
    ) -> Result<()> {
        // SAFETY: the caller's promise, and the table's.
        unsafe { self.stream.launch(self.function(kernel, variant)?, grid, args) }
    }
}
