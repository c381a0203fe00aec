//! The engine's half that serves: everything is allocated and loaded, ops queue kernels on one stream.

use super::args::Format;
use super::buffer::{Buffer, ExpertWork, Experts, KvLayer, Matrix, Rope, Vector};
use super::compute::Compute;
use super::graphs::{Graphs, Plan, Usable};
use super::ops::{GpuStep, Library};
use super::rehearse::{AttentionShape, Rehearsal};
use super::select::Results;
use super::self_test::TestMemory;
use super::step::StepInputs;
use super::transfers::Transfers;
use super::{Device, DeviceBuffer, KernelType, Kernels};
use crate::Result;
use crate::backend::{Backend, KvLayerSpec, MemoryLedger, StepOps};
use crate::batch::Batch;
use crate::config::GpuOptions;
use crate::interrupt::Interrupt;
use crate::quant::GgmlType;
use crate::selection::{Selection, Wish};

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
    library_problem: Option<String>,
    pub(super) results: Results,
    pub(super) transfers: Transfers,
    /// The self-test's, while it runs and after it failed.
    pub(super) test_memory: Option<TestMemory>,
    host: Vec<f32>,
    /// Behind every address: freed with the backend.
    _allocations: Vec<DeviceBuffer>,
    pub(super) ledger: MemoryLedger,
    kernels: Kernels,
    types: Vec<(KernelType, GgmlType)>,
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

    /// Runs the ops of a step, records them, or repeats a recording.
    pub(super) fn run_step(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.device.check()?;
        let Self { graphs, compute, inputs, attention_shapes, transfers, .. } = self;
        graphs.abandon(compute.launcher.stream());
        transfers.settle(compute.launcher.stream())?;
        transfers.begin();
        inputs.begin(batch, |rows| graphs.padded(rows))?;
        let (stream, copy_step) = (compute.launcher.stream(), &compute.launcher.functions().copy_step);
        let plan = match inputs.shape.pure_decode {
            true => graphs.begin(batch, inputs, stream, copy_step)?,
            false => Plan::Run,
        };
        let (tokens, logits, recorded) = match plan {
            Plan::Run => {
                inputs.bring(stream, copy_step)?;
                (batch.num_tokens(), batch.logits_indices.len(), None)
            }
            Plan::Record { rows } => (rows, rows, Some(rows)),
            Plan::Replay => (0, 0, None),
        };
        if plan != Plan::Replay {
            ops(&mut GpuStep { compute, inputs, attention_shapes, batch, tokens, logits, recorded })?;
        }
        graphs.end(inputs, compute.launcher.stream())?;
        // All that uses page-locked memory is the copy of the step's integers, which an event marks.
        transfers.settled();
        Ok(())
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

#[deny(clippy::missing_trait_methods)]
impl Backend for GpuBackend {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vector;
    type Rope = Rope;
    type KvLayer = KvLayer;
    type Experts = Experts;
    type ExpertWork = ExpertWork;
    type Step<'s> = GpuStep<'s>;

    const ASYNCHRONOUS: bool = true;

    /// A step takes milliseconds, and what was launched cannot be called back.
    fn interrupt(&self) -> Option<&Interrupt> {
        None
    }

    fn step(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.run_step(batch, ops)
    }

    fn rehearse(&mut self, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.rehearse_steps(ops)
    }

    fn select(&mut self, logits: &Buffer, cols: usize, wishes: &[Wish<'_>]) -> Result<()> {
        self.transfers.begin();
        self.results.select(&self.compute, logits, cols, wishes)
    }

    fn collect<'a>(&'a mut self, logits: &'a Buffer, rows: usize, cols: usize) -> Result<Selection<'a>> {
        self.results.collect(self.compute.launcher.stream(), &mut self.transfers, logits, rows, cols)
    }

    fn to_host<'a>(&'a mut self, buffer: &'a Buffer, rows: usize, cols: usize) -> Result<&'a [f32]> {
        let mut from = buffer.read("the buffer to read", rows, cols)?;
        if !buffer.format.is_f32() {
            self.compute.convert(buffer, rows, cols, Format::F32)?;
            from = self.compute.workspace.conversion.ptr;
        }
        self.host.clear();
        self.transfers.read(self.compute.launcher.stream(), from, 4 * rows * cols, |bytes| {
            self.host.extend(bytes.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)));
        })?;
        Ok(&self.host)
    }

    fn memory(&self) -> MemoryLedger {
        self.ledger
    }

    fn device_allocations(&self) -> u64 {
        self.device.allocations()
    }

    fn describe(&self) -> String {
        let long_prompts = match (&self.compute.library, &self.library_problem) {
            (Some(Library { refusal: Some(refusal), .. }), _) => {
                format!("matmul (the matrix library refused: {refusal})")
            }
            (Some(library), _) => library.blas.file().display().to_string(),
            (None, Some(problem)) => format!("matmul (the matrix library is not used: {problem})"),
            (None, None) => "matmul".to_owned(),
        };
        let (properties, options) = (self.device.properties(), &self.options);
        super::describe::describe(properties, &self.kernels, &self.types, options, &long_prompts, &self.graphs)
    }
}
