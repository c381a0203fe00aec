//! The engine's half that serves: everything is allocated and loaded, ops queue kernels on one stream.
#![deny(clippy::missing_trait_methods)] // a fused op that falls back to its parts must say so here

use super::args::{Format, LINEAR_ADD};
use super::buffer::{Buffer, ExpertWork, Experts, KvLayer, Matrix, Vector};
use super::functions::Functions;
use super::graphs::{Graphs, Usable};
use super::ops::Vendor;
use super::rehearse::{AttentionShape, Rehearsal};
use super::select::Results;
use super::self_test::TestMemory;
use super::step::StepInputs;
use super::{Device, DeviceBuffer, DevicePtr, HostBuffer, KernelType, Kernels, Stream};
use crate::backend::{
    Activation, AttentionArgs, Backend, KvLayerSpec, MemoryLedger, Plan, QkvLayout, RopeSpec, Rotation,
};
use crate::batch::Batch;
use crate::config::GpuOptions;
use crate::interrupt::Interrupt;
use crate::quant::GgmlType;
use crate::selection::{Selection, Wish};
use crate::{Error, Result};

/// Bytes of results that come to the host at once.
const STAGING_BYTES: usize = 4 << 20;
/// Rotated pairs of a head at most: heads have up to 256 elements.
pub(super) const MAX_PAIRS: usize = 128;

/// Computes on a GPU; made by [`super::GpuLoader`].
pub struct GpuBackend {
    pub(super) device: Device,
    pub(super) options: GpuOptions,
    /// Before all memory and code, as the graphs that run on it: their drops wait for what is still queued.
    pub(super) stream: Stream,
    pub(super) graphs: Graphs,
    /// What was queued may use page-locked memory, and nobody has waited for it: a step runs, or one did not come to
    /// its end.
    pub(super) unsettled: bool,
    pub(super) functions: Functions,
    pub(super) inputs: StepInputs,
    pub(super) rehearsal: Rehearsal,
    /// Of the KV cache, where there is one.
    pub(super) cache: Option<KvLayerSpec>,
    /// Those that were seen.
    pub(super) attention_shapes: Vec<AttentionShape>,
    /// Partial sums of split products and attention, and the counters by which their blocks find the last one.
    pub(super) partial: DevicePtr,
    pub(super) counters: DevicePtr,
    /// Rows on their way from one format to another.
    pub(super) conversion: Buffer,
    /// The vendor's matrix library, where there is one.
    pub(super) vendor: Option<Vendor>,
    /// Why it does not serve, where it is there.
    vendor_problem: Option<String>,
    /// What all matrices take on the matrix units, if they agree.
    pub(super) common: Option<Format>,
    /// The frequencies that `rope_angles` was last given, and where the device has them.
    pub(super) rope: Option<RopeSpec>,
    pub(super) inv_freq: DeviceBuffer,
    pub(super) results: Results,
    /// Results on their way to the host, frequencies on theirs to the device.
    pub(super) staging: HostBuffer,
    /// The self-test's, while it runs and after it failed.
    pub(super) test_memory: Option<TestMemory>,
    host: Vec<f32>,
    pub(super) words: Vec<u32>,
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
    pub stream: Stream,
    pub functions: Functions,
    pub inputs: StepInputs,
    pub partial: DevicePtr,
    pub counters: DevicePtr,
    pub conversion: Buffer,
    pub vendor: Option<Vendor>,
    pub vendor_problem: Option<String>,
    pub common: Option<Format>,
    /// Whether steps may be recorded.
    pub graphs: Usable,
    pub cache: Option<KvLayerSpec>,
    pub allocations: Vec<DeviceBuffer>,
    pub ledger: MemoryLedger,
    pub kernels: Kernels,
    pub types: Vec<(KernelType, GgmlType)>,
}

impl GpuBackend {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let inv_freq = DeviceBuffer::new(&parts.device, 4 * MAX_PAIRS as u64)?;
        let staging = HostBuffer::new(&parts.device, STAGING_BYTES)?;
        let mut ledger = parts.ledger;
        let results = Results::new(&parts.device, parts.inputs.limits())?;
        ledger.other += inv_freq.bytes();
        if let Err(reason) = &parts.graphs {
            tracing::warn!("decode steps are launched op by op, which is slower: {reason}");
        }
        Ok(Self {
            graphs: Graphs::new(parts.graphs, parts.inputs.most_decodes()),
            unsettled: false,
            rehearsal: Rehearsal::First,
            cache: parts.cache,
            attention_shapes: Vec::new(),
            device: parts.device,
            options: parts.options,
            stream: parts.stream,
            functions: parts.functions,
            inputs: parts.inputs,
            partial: parts.partial,
            counters: parts.counters,
            conversion: parts.conversion,
            vendor: parts.vendor,
            vendor_problem: parts.vendor_problem,
            common: parts.common,
            rope: None,
            inv_freq,
            results,
            staging,
            test_memory: None,
            host: Vec::new(),
            words: Vec::new(),
            _allocations: parts.allocations,
            ledger,
            kernels: parts.kernels,
            types: parts.types,
        })
    }

    /// From how many rows on the vendor's library serves; `None` where there is none.
    pub(super) fn vendor_rows(&self) -> Option<usize> {
        self.vendor.as_ref().filter(|vendor| vendor.refusal.is_none()).map(|vendor| vendor.least_rows)
    }

    pub(super) fn multiprocessors(&self) -> u32 {
        self.device.properties().multiprocessors
    }

    /// Rows of tokens that the ops of this step compute: those of the batch, or of the recording that it is part of.
    /// The first op that asks has the step's numbers brought to the device, as a recording does itself.
    pub(super) fn rows(&mut self, batch: &Batch) -> Result<usize> {
        let tokens = self.tokens(batch)?;
        self.inputs.bring(&self.stream, &self.functions.copy_step)?;
        Ok(self.graphs.recording().unwrap_or(tokens))
    }

    /// Those of the batch, which has to be the step's.
    fn tokens(&self, batch: &Batch) -> Result<usize> {
        let tokens = batch.num_tokens();
        if tokens != self.inputs.shape.tokens {
            return Err(Error::internal(format!(
                "an op on a batch of {tokens} tokens, the step began with {}",
                self.inputs.shape.tokens
            )));
        }
        Ok(tokens)
    }

    /// Waits for what a step that failed has left behind. That a wait failed says nothing of the work before it, and
    /// what was queued before a failed launch runs all the same: both may still read or write page-locked memory, which
    /// the next step is about to use. Until a wait succeeds, every step fails here; none uses the memory.
    fn settle(&mut self) -> Result<()> {
        if self.unsettled {
            self.stream.synchronize()?;
            self.unsettled = false;
        }
        Ok(())
    }

    /// Brings `bytes` of device memory to the host, piece by piece, and shows each piece to `take`.
    pub(super) fn read(&mut self, from: DevicePtr, bytes: usize, mut take: impl FnMut(&[u8])) -> Result<()> {
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(STAGING_BYTES);
            let to = &mut self.staging.as_mut_slice()[..piece];
            self.unsettled = true;
            // SAFETY: `to` is looked at only after the stream was waited for; the range is the caller's, allocated as
            // long as the backend lives.
            unsafe { self.stream.copy_to_host(to, from.offset(done as u64))? };
            self.stream.synchronize()?;
            self.unsettled = false;
            take(&self.staging.as_slice()[..piece]);
            done += piece;
        }
        Ok(())
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        self.graphs.abandon(&self.stream);
        // Memory and modules go next: nothing may still run on them. Should this wait fail, the stream's own, which
        // comes before they go, is a second one; behind that there is only the wait that AMD and NVIDIA document of a
        // free.
        let _ = self.stream.synchronize();
    }
}

impl Backend for GpuBackend {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vector;
    type KvLayer = KvLayer;
    type Experts = Experts;
    type ExpertWork = ExpertWork;

    const ASYNCHRONOUS: bool = true;

    fn begin_step(&mut self, batch: &Batch) -> Result<()> {
        self.device.check()?;
        self.graphs.abandon(&self.stream);
        self.settle()?;
        self.unsettled = true;
        let Self { inputs, graphs, .. } = self;
        inputs.begin(batch, |rows| graphs.padded(rows))
    }

    /// A step takes milliseconds, and what was launched cannot be called back.
    fn interrupt(&self) -> Option<&Interrupt> {
        None
    }

    fn begin_ops(&mut self, batch: &Batch) -> Result<Plan> {
        let tokens = self.tokens(batch)?;
        if !self.inputs.shape.pure_decode {
            return Ok(Plan::Run { rows: tokens });
        }
        self.graphs.begin(batch, &mut self.inputs, &self.stream, &self.functions.copy_step)
    }

    fn end_ops(&mut self) -> Result<()> {
        self.graphs.end(&mut self.inputs, &self.stream)?;
        // All that uses page-locked memory is the copy of the step's integers, which an event marks.
        self.unsettled = false;
        Ok(())
    }

    fn next_rehearsal(&mut self) -> Result<Option<Batch>> {
        self.rehearse_next()
    }

    fn rehearsed(&mut self, outcome: Result<()>) -> Result<()> {
        self.rehearsed_one(outcome)
    }

    fn embed(&mut self, table: &Matrix, batch: &Batch, scale: f32, out: &mut Buffer) -> Result<()> {
        self.embed_rows(table, batch, scale, out)
    }

    fn rms_norm(&mut self, x: &Buffer, weight: &Vector, eps: f32, rows: usize, out: &mut Buffer) -> Result<()> {
        self.prepare(x, Some((weight, eps)), rows, weight.len, out, Format::F32)
    }

    fn linear(&mut self, matrix: &Matrix, x: &Buffer, rows: usize, out: &mut Buffer) -> Result<()> {
        self.multiply(matrix, x, None, rows, out, Format::F32, 0)
    }

    fn linear_add(&mut self, matrix: &Matrix, x: &Buffer, rows: usize, residual: &mut Buffer) -> Result<()> {
        self.multiply(matrix, x, None, rows, residual, Format::F32, LINEAR_ADD)
    }

    fn norm_linear(
        &mut self,
        x: &Buffer,
        norm: &Vector,
        eps: f32,
        matrix: &Matrix,
        rows: usize,
        normed: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<()> {
        self.norm_multiply(x, Some((norm, eps)), matrix, rows, normed, out, Format::F32)
    }

    fn norm_gated_linear(
        &mut self,
        x: &Buffer,
        norm: &Vector,
        eps: f32,
        gate_up: &Matrix,
        activation: Activation,
        rows: usize,
        cols: usize,
        normed: &mut Buffer,
        products: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<()> {
        let norm = Some((norm, eps));
        self.norm_gated_multiply(x, norm, gate_up, activation, rows, cols, normed, products, out)
    }

    fn experts(
        &mut self,
        experts: &Experts,
        norm: &Vector,
        eps: f32,
        rows: usize,
        normed: &mut Buffer,
        work: &mut ExpertWork,
        residual: &mut Buffer,
    ) -> Result<()> {
        self.run_experts(experts, (norm, eps), rows, normed, work, residual)
    }

    fn rope_angles(&mut self, spec: &RopeSpec, batch: &Batch, out: &mut Buffer) -> Result<()> {
        self.angles(spec, batch, out)
    }

    fn rope_and_store_kv(
        &mut self,
        qkv: &mut Buffer,
        layout: QkvLayout,
        rotation: Rotation<'_, Vector, Buffer>,
        batch: &Batch,
        group: usize,
        kv: &mut KvLayer,
    ) -> Result<()> {
        self.rope_store(qkv, layout, rotation, batch, group, kv)
    }

    fn attention(
        &mut self,
        qkv: &Buffer,
        layout: QkvLayout,
        args: AttentionArgs,
        batch: &Batch,
        group: usize,
        kv: &KvLayer,
        out: &mut Buffer,
    ) -> Result<()> {
        self.attend(qkv, layout, None, args, batch, group, kv, out)
    }

    fn rope_attention(
        &mut self,
        qkv: &mut Buffer,
        layout: QkvLayout,
        rotation: Rotation<'_, Vector, Buffer>,
        args: AttentionArgs,
        batch: &Batch,
        group: usize,
        kv: &mut KvLayer,
        out: &mut Buffer,
    ) -> Result<()> {
        if self.rotates_in_attention(args) {
            return self.attend(qkv, layout, Some(rotation), args, batch, group, kv, out);
        }
        self.rope_store(qkv, layout, rotation, batch, group, kv)?;
        self.attend(qkv, layout, None, args, batch, group, kv, out)
    }

    fn gated_activation(
        &mut self,
        gate_up: &Buffer,
        activation: Activation,
        rows: usize,
        cols: usize,
        out: &mut Buffer,
    ) -> Result<()> {
        self.activate(gate_up, activation, rows, cols, out)
    }

    fn gather_rows(&mut self, x: &Buffer, batch: &Batch, cols: usize, out: &mut Buffer) -> Result<()> {
        self.gather(x, batch, cols, out)
    }

    fn copy_blocks(&mut self, batch: &Batch, group: usize, kv: &mut KvLayer) -> Result<()> {
        self.copy_kv_blocks(batch, group, kv)
    }

    fn to_host<'a>(&'a mut self, buffer: &'a Buffer, rows: usize, cols: usize) -> Result<&'a [f32]> {
        let mut from = buffer.read("the buffer to read", rows, cols)?;
        if !buffer.format.is_f32() {
            let mut conversion = self.take_conversion();
            let converted = self.prepare(buffer, None, rows, cols, &mut conversion, Format::F32);
            from = conversion.ptr;
            self.conversion = conversion;
            converted?;
        }
        let mut host = std::mem::take(&mut self.host);
        host.clear();
        let read = self.read(from, 4 * rows * cols, |bytes| {
            host.extend(bytes.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)));
        });
        self.host = host;
        read?;
        Ok(&self.host)
    }

    fn begin_select(&mut self, logits: &Buffer, cols: usize, wishes: &[Wish<'_>]) -> Result<()> {
        self.unsettled = true;
        self.queue_selection(logits, cols, wishes)
    }

    fn select<'a>(&'a mut self, logits: &'a Buffer, rows: usize, cols: usize) -> Result<Selection<'a>> {
        self.bring_selection(logits, rows, cols)
    }

    fn memory(&self) -> MemoryLedger {
        self.ledger
    }

    fn device_allocations(&self) -> u64 {
        self.device.allocations()
    }

    fn describe(&self) -> String {
        let long_prompts = match (&self.vendor, &self.vendor_problem) {
            (Some(Vendor { refusal: Some(refusal), .. }), _) => {
                format!("matmul (the matrix library refused: {refusal})")
            }
            (Some(vendor), _) => vendor.blas.file().display().to_string(),
            (None, Some(problem)) => format!("matmul (the matrix library is not used: {problem})"),
            (None, None) => "matmul".to_owned(),
        };
        let (properties, options) = (self.device.properties(), &self.options);
        super::describe::describe(properties, &self.kernels, &self.types, options, &long_prompts, &self.graphs)
    }
}
