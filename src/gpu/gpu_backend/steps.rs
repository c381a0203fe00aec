//! Steps and their results on a GPU: the engine's calls of the backend.

use super::GpuBackend;
use super::contents::memory_of;
use super::gpu_step::GpuStep;
use crate::backend::op_args::check_written;
use crate::backend::{Backend, Content, Copied, ExpertCacheUse, MemoryLedger, NormRows, Part, StepOps};
use crate::batch::Batch;
use crate::buffer::{Buffer, ExpertWork, Experts, HeadMatrices, KvLayer, Matrix, Rope, StateLayer, Vector};
use crate::capture::graphs::Plan;
use crate::config::ComputeDtype;
use crate::device::copies::Copies;
use crate::device::stream::Stream;
use crate::interrupt::Interrupt;
use crate::launch::args::Format;
use crate::launch::catalog::{COPY_STEP, ONCE};
use crate::report::describe::describe;
use crate::selection::{SamplingRequest, Selection};
use crate::{Error, Result};

impl GpuBackend {
    /// Returns the copies and the stream of the steps.
    fn copies(&mut self) -> Result<(&mut Copies, &Stream)> {
        let copies =
            self.copies.as_mut().ok_or_else(|| Error::internal("a copy of a content that was not prepared"))?;
        Ok((copies, self.compute.launcher().stream()))
    }

    /// Runs the ops of a step, captures them, or replays a captured graph.
    pub(super) fn run_step(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.run_step_of(batch, true, ops)
    }

    /// `is_capturable`: true if these ops are those of captured graphs.
    fn run_step_of(&mut self, batch: &Batch, is_capturable: bool, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.device.check()?;
        let Self { graphs, compute, copies, inputs, attention_shapes, results, transfers, .. } = self;
        graphs.abandon(compute.launcher().stream());
        copies.as_mut().map_or(Ok(()), |copies| copies.begin_step(compute.launcher().stream()))?;
        let has_failed = transfers.settle(compute.launcher().stream())?;
        compute.settle_staging()?;
        compute.settle_host(has_failed)?;
        transfers.begin();
        if graphs.next_turn().is_none() {
            compute.step_cache()?;
        }
        inputs.begin(batch, graphs.next_turn(), |rows| graphs.padded(rows))?;
        let chosen = results.begin_step(batch)?;
        let (stream, copy_step) = (compute.launcher().stream(), compute.launcher().function(COPY_STEP, ONCE)?);
        let plan = match inputs.shape().pure_decode && is_capturable {
            true => graphs.begin(batch, inputs, stream, copy_step, chosen)?,
            false => Plan::Run,
        };
        let (tokens, logits, captured) = match plan {
            Plan::Run => {
                inputs.bring(stream, copy_step, chosen)?;
                compute.begin_staging(batch.num_tokens())?;
                (batch.num_tokens(), batch.logits_indices.len(), None)
            }
            Plan::Capture { rows } => (rows, rows, Some(rows)),
            Plan::Replay => (0, 0, None),
        };
        compute.begin_host(inputs.turn(), batch.num_tokens(), matches!(plan, Plan::Capture { .. }));
        if plan != Plan::Replay {
            let done = ops(&mut GpuStep::new(compute, inputs, attention_shapes, batch, [tokens, logits], captured));
            // The step's results must be complete before they are read.
            let done = done.and_then(|()| compute.launcher().settle());
            if let Err(error) = done.and_then(|()| compute.end_staging()) {
                compute.launcher().forget_left();
                return Err(error);
            }
        }
        graphs.end(inputs, compute.launcher().stream())?;
        // Only the copy of the step's integers uses page-locked memory, and an event marks its end.
        transfers.settled();
        Ok(())
    }
}

#[deny(clippy::missing_trait_methods)]
impl Backend for GpuBackend {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type HeadMatrices = HeadMatrices;
    type Vector = Vector;
    type Rope = Rope;
    type KvLayer = KvLayer;
    type StateLayer = StateLayer;
    type Experts = Experts;
    type ExpertWork = ExpertWork;
    type Step<'s> = GpuStep<'s>;

    const ASYNCHRONOUS: bool = true;

    /// A step takes milliseconds, and launched work cannot be recalled.
    fn interrupt(&self) -> Option<&Interrupt> {
        None
    }

    fn step(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.run_step(batch, ops)
    }

    fn step_apart(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.run_step_of(batch, false, ops)
    }

    fn warm_up(&mut self, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.warm_up_steps(ops)
    }

    fn select(&mut self, logits: &Buffer, cols: usize, sampling_requests: &[SamplingRequest<'_>]) -> Result<()> {
        self.transfers.begin();
        self.results.select(&self.compute, logits, cols, sampling_requests)?;
        // An event marks the end of all uses of page-locked memory.
        self.transfers.settled();
        Ok(())
    }

    fn collect<'a>(&'a mut self, logits: &'a Buffer, rows: usize, cols: usize) -> Result<Selection<'a>> {
        let selection =
            self.results.collect(self.compute.launcher().stream(), &mut self.transfers, logits, rows, cols)?;
        self.compute.check_host()?;
        Ok(selection)
    }

    fn normed_rows<'a>(&'a mut self, args: NormRows<'a, Self>) -> Result<&'a [f32]> {
        let (rows, cols) = (args.rows, args.cols());
        let NormRows { x, norm, out, .. } = args;
        self.compute.norm_rows(NormRows { x, norm, rows, out: &mut *out })?;
        self.to_host(out, rows, cols)
    }

    fn write_rows(&mut self, buffer: &mut Buffer, first: usize, values: &[f32], cols: usize) -> Result<()> {
        check_written(buffer, first, values, cols)?;
        let what = "the buffer of written rows";
        // Rows that are kept have to be of the format of those that are written.
        let to = match first {
            0 => buffer.write(what, values.len() / cols, cols, Format::F32)?,
            _ => buffer.read_f32(what, first + values.len() / cols, cols)?.after(Format::F32.bytes(first, cols))?,
        };
        self.transfers.write(self.compute.launcher().stream(), to, values)
    }

    fn to_host<'a>(&'a mut self, buffer: &'a Buffer, rows: usize, cols: usize) -> Result<&'a [f32]> {
        if !buffer.format().is_f32() {
            self.compute.convert(buffer, rows, cols, Format::F32)?;
        }
        self.host.clear();
        let from = self.compute.workspace().rows_in(Format::F32, buffer, rows, cols)?;
        let from = from.part(0, Format::F32.bytes(rows, cols))?;
        self.transfers.read(self.compute.launcher().stream(), from, |bytes| {
            self.host.extend(bytes.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)));
        })?;
        self.compute.check_host()?;
        Ok(&self.host)
    }

    fn prepare_copies(&mut self, staged: &[(u64, usize)]) -> Result<()> {
        self.copies = Some(Copies::new(&self.device, staged)?);
        Ok(())
    }

    fn copy_out(&mut self, number: u64, parts: &mut [Part<'_, Self>]) -> Result<bool> {
        let (copies, steps) = self.copies()?;
        copies.copy_out(number, &memory_of(parts)?, steps)
    }

    fn copied(&mut self, wait: bool) -> Result<Option<Copied>> {
        self.copies()?.0.copied(wait)
    }

    fn copy_in(&mut self, number: u64, parts: &mut [Part<'_, Self>], content: &Content) -> Result<bool> {
        self.copies()?.0.copy_in(number, &memory_of(parts)?, content)
    }

    fn copied_in(&mut self, wait: bool) -> Result<Option<u64>> {
        let (copies, steps) = self.copies()?;
        copies.copied_in(wait, steps)
    }

    fn recycle(&mut self, content: Content) -> Result<()> {
        self.copies()?.0.recycle(content)
    }

    fn order_copies(&mut self) -> Result<()> {
        self.copies()?.0.order();
        Ok(())
    }

    fn memory(&self) -> MemoryLedger {
        self.ledger
    }

    fn device_allocations(&self) -> u64 {
        self.device.allocations()
    }

    fn expert_cache(&self) -> ExpertCacheUse {
        self.compute.cache_uses()
    }

    fn describe(&self) -> String {
        let long_prompts = match (self.compute.library(), &self.library_problem) {
            (Some(library), _) => match library.refusal() {
                Some(refusal) => format!("matmul (the matrix library refused: {refusal})"),
                None => match self.options.compute_dtype {
                    ComputeDtype::Auto => library.file().display().to_string(),
                    ComputeDtype::Fp8 => format!("{} in fp8", library.file().display()),
                },
            },
            (None, Some(problem)) => format!("matmul (the matrix library is not used: {problem})"),
            (None, None) => "matmul".to_owned(),
        };
        let described = describe(
            self.device.properties(),
            self.compute.launcher().tuning(),
            &self.kernels,
            &self.types,
            &long_prompts,
            &self.graphs,
            &self.step_kernels,
        );
        match &self.placed {
            Some(placed) => format!("{described}; {placed}"),
            None => described,
        }
    }
}
