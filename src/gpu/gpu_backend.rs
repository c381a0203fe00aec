//! The GPU backend that serves steps: all memory is allocated and loaded, and ops queue kernels on one stream.

mod contents;
pub(crate) mod gpu_step;
mod self_test;
mod steps;
mod warm_up;

pub(super) use self::self_test::Sample;
use self::self_test::TestMemory;
use super::buffer::Segment;
use super::capture::graphs::{Graphs, Usable};
use super::capture::steps::{AttentionShape, StepKernels, WarmUp};
use super::compute::Compute;
use super::device::copies::Copies;
use super::device::transfers::Transfers;
use super::select::Results;
use super::step::StepInputs;
use super::{Device, DeviceBuffer, KernelType, Kernels};
use crate::Result;
use crate::backend::{KvLayerSpec, MemoryLedger};
use crate::config::GpuOptions;

/// A GPU backend, created by [`super::GpuLoader`].
pub struct GpuBackend {
    device: Device,
    options: GpuOptions,
    /// Graphs and the stream (in `compute`) come before all memory and code, because their drops wait for queued work.
    graphs: Graphs,
    compute: Compute,
    /// `None` unless contents are copied to the host.
    copies: Option<Copies>,
    inputs: StepInputs,
    warm_up: WarmUp,
    /// Kernels of a decode step, by its rows.
    step_kernels: StepKernels,
    /// The specification of each KV layer.
    cache: Vec<KvLayerSpec>,
    /// Shapes of the attention ops called so far, without duplicates.
    attention_shapes: Vec<AttentionShape>,
    /// The reason why the vendor's matrix library is installed but not used.
    library_problem: Option<String>,
    /// A line about weights in the host's memory, if there are any.
    placed: Option<String>,
    results: Results,
    transfers: Transfers,
    /// Memory of the self-test, while it runs and after it failed.
    test_memory: Option<TestMemory>,
    host: Vec<f32>,
    /// All of the engine's memory: freed with the backend, or with the last part that outlives it.
    _allocations: Vec<DeviceBuffer>,
    ledger: MemoryLedger,
    kernels: Kernels,
    types: Vec<KernelType>,
}

/// Everything that the loader hands over to the backend.
pub(super) struct Parts {
    pub device: Device,
    pub options: GpuOptions,
    pub compute: Compute,
    pub inputs: StepInputs,
    pub library_problem: Option<String>,
    pub placed: Option<String>,
    /// Tells if steps may be captured.
    pub graphs: Usable,
    pub cache: Vec<KvLayerSpec>,
    pub allocations: Vec<DeviceBuffer>,
    pub ledger: MemoryLedger,
    pub kernels: Kernels,
    pub types: Vec<KernelType>,
}

impl GpuBackend {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let transfers = Transfers::new(&parts.device)?;
        let results = Results::new(&parts.device, parts.inputs.limits())?;
        if let Err(reason) = &parts.graphs {
            tracing::warn!("decode steps are launched op by op, which is slower: {reason}");
        }
        Ok(Self {
            graphs: Graphs::new(parts.graphs, parts.inputs.most_decodes()),
            warm_up: WarmUp::First,
            step_kernels: StepKernels::new(),
            cache: parts.cache,
            attention_shapes: Vec::new(),
            device: parts.device,
            options: parts.options,
            compute: parts.compute,
            copies: None,
            inputs: parts.inputs,
            library_problem: parts.library_problem,
            placed: parts.placed,
            results,
            transfers,
            test_memory: None,
            host: Vec::new(),
            _allocations: parts.allocations,
            ledger: parts.ledger,
            kernels: parts.kernels,
            types: parts.types,
        })
    }

    /// Measures from how many rows on copies of experts take less time than the CPU. Without the self-test it is a
    /// fixed number. Copies are no part of captured graphs, so larger batches are not captured.
    pub(super) fn measure_host(&mut self) -> Result<()> {
        if self.options.self_test {
            self.compute.measure_host()?;
        }
        if let Some(rows) = self.compute.copied_rows() {
            self.graphs.limit(rows.saturating_sub(1));
        }
        Ok(())
    }

    /// Dequantises those segments (with their columns) that have reserved room for it.
    pub(super) fn keep_dequantized(&self, segments: &[(Segment, usize)]) -> Result<()> {
        self.compute.keep_dequantized(segments)
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        let stream = self.compute.launcher().stream();
        self.graphs.abandon(stream);
        // Memory and modules are dropped next, so nothing may still use them. If this wait fails, the stream waits
        // again when it is dropped, which is before they are. After that, only the wait that AMD and NVIDIA document
        // for a free remains. It does not cover the CPU's part, so that is kept.
        let waited = stream.synchronize();
        if waited.and_then(|()| self.compute.settle_host(false)).is_err() {
            self.compute.keep_host();
        }
    }
}
