//! The engine's half that serves: everything is allocated and loaded, ops queue kernels on one stream.

mod rehearse;
mod self_test;
mod steps;

pub(super) use self::self_test::Sample;
use self::self_test::TestMemory;
use super::buffer::Segment;
use super::compute::Compute;
use super::graphs::{Graphs, Usable};
use super::rehearsal::{AttentionShape, Rehearsal};
use super::select::Results;
use super::step::StepInputs;
use super::transfers::Transfers;
use super::{Device, DeviceBuffer, KernelType, Kernels};
use crate::Result;
use crate::backend::{KvLayerSpec, MemoryLedger};
use crate::config::GpuOptions;
use crate::quant::GgmlType;

/// Computes on a GPU; made by [`super::GpuLoader`].
pub struct GpuBackend {
    device: Device,
    options: GpuOptions,
    /// Graphs and the stream (of `compute`) come before all memory and code: their drops wait for what is still queued.
    graphs: Graphs,
    compute: Compute,
    inputs: StepInputs,
    rehearsal: Rehearsal,
    /// The specification of each KV layer.
    cache: Vec<KvLayerSpec>,
    /// Shapes of the attention ops that were called, each once.
    attention_shapes: Vec<AttentionShape>,
    /// Why the vendor's matrix library does not serve, where it is there.
    library_problem: Option<String>,
    results: Results,
    transfers: Transfers,
    /// Memory of the self-test, while it runs and after it failed.
    test_memory: Option<TestMemory>,
    host: Vec<f32>,
    /// The engine's memory, all of it: freed with the backend, or when the last part of it goes after that.
    _allocations: Vec<DeviceBuffer>,
    ledger: MemoryLedger,
    kernels: Kernels,
    types: Vec<(KernelType, GgmlType)>,
}

/// Everything that the loader hands over to the backend.
pub(super) struct Parts {
    pub device: Device,
    pub options: GpuOptions,
    pub compute: Compute,
    pub inputs: StepInputs,
    pub library_problem: Option<String>,
    /// Whether steps may be recorded.
    pub graphs: Usable,
    pub cache: Vec<KvLayerSpec>,
    pub allocations: Vec<DeviceBuffer>,
    pub ledger: MemoryLedger,
    pub kernels: Kernels,
    pub types: Vec<(KernelType, GgmlType)>,
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
            rehearsal: Rehearsal::First,
            cache: parts.cache,
            attention_shapes: Vec::new(),
            device: parts.device,
            options: parts.options,
            compute: parts.compute,
            inputs: parts.inputs,
            library_problem: parts.library_problem,
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

    /// Dequantises the segments (with their columns) that have a place for it.
    pub(super) fn keep_dequantized(&self, segments: &[(Segment, usize)]) -> Result<()> {
        self.compute.keep_dequantized(segments)
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        let stream = self.compute.launcher().stream();
        self.graphs.abandon(stream);
        // Memory and modules go next: nothing may still run on them. Should this wait fail, the stream's own, which
        // comes before they go, is a second one; behind that there is only the wait that AMD and NVIDIA document of a
        // free.
        let _ = stream.synchronize();
    }
}
