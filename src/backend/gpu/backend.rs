//! The engine's half that serves: everything is allocated and loaded, ops queue kernels on one stream.

use super::compute::Compute;
use super::graphs::{Graphs, Usable};
use super::rehearsal::{AttentionShape, Rehearsal};
use super::select::Results;
use super::step::StepInputs;
use super::transfers::Transfers;
use super::{Device, DeviceBuffer, HostBuffer, KernelType, Kernels};
use crate::Result;
use crate::backend::{KvLayerSpec, MemoryLedger};
use crate::config::GpuOptions;
use crate::quant::GgmlType;

/// Computes on a GPU; made by [`super::GpuLoader`].
pub struct GpuBackend {
    pub(super) device: Device,
    pub(super) options: GpuOptions,
    /// Graphs and the stream (of `compute`) come before all memory and code: their drops wait for what is still queued.
    pub(super) graphs: Graphs,
    pub(super) compute: Compute,
    pub(super) inputs: StepInputs,
    pub(super) rehearsal: Rehearsal,
    /// Of each KV layer.
    pub(super) cache: Vec<KvLayerSpec>,
    /// Those that attention was asked for.
    pub(super) attention_shapes: Vec<AttentionShape>,
    /// Why the vendor's matrix library does not serve, where it is there.
    pub(super) library_problem: Option<String>,
    pub(super) results: Results,
    pub(super) transfers: Transfers,
    /// The self-test's, while it runs and after it failed.
    pub(super) test_memory: Option<TestMemory>,
    pub(super) host: Vec<f32>,
    /// Behind every address: freed with the backend.
    _allocations: Vec<DeviceBuffer>,
    pub(super) ledger: MemoryLedger,
    pub(super) kernels: Kernels,
    pub(super) types: Vec<(KernelType, GgmlType)>,
}

/// What the products of the self-test are computed on. The backend holds it: after an error they may still run, and the
/// backend's drop waits for them.
pub struct TestMemory {
    pub host: HostBuffer,
    pub x: DeviceBuffer,
    pub out: DeviceBuffer,
}

/// What the loader hands over.
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
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        let stream = self.compute.launcher.stream();
        self.graphs.abandon(stream);
        // Memory and modules go next: nothing may still run on them. Should this wait fail, the stream's own, which
        // comes before they go, is a second one; behind that there is only the wait that AMD and NVIDIA document of a
        // free.
        let _ = stream.synchronize();
    }
}
