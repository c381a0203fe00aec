//! Queues the engine's kernels on its one stream, with what every plan of a launch depends on.

use super::functions::Functions;
use super::{Function, KernelArgs, Stream};
use crate::Result;

pub struct Launcher {
    stream: Stream,
    functions: Functions,
    multiprocessors: u32,
    /// Results may not depend on what they are computed with: every plan is then the same for any number of rows.
    batch_invariant: bool,
}

impl Launcher {
    pub fn new(stream: Stream, functions: Functions, batch_invariant: bool) -> Self {
        let multiprocessors = stream.device().properties().multiprocessors;
        Self { stream, functions, multiprocessors, batch_invariant }
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    pub fn batch_invariant(&self) -> bool {
        self.batch_invariant
    }

    /// Queues a kernel.
    ///
    /// # Errors
    /// As `Stream::launch`.
    ///
    /// # Safety
    /// As `Stream::launch`.
    pub unsafe fn launch<A: KernelArgs>(&self, function: &Function, grid: [u32; 3], args: &A) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.launch(function, grid, args) }
    }
}
