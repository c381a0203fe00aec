//! Steps on the CPU: checks the arguments of each op, then runs its kernel on the thread pool.

use super::cpu_backend::{CpuBackend, HeadMatrices};
use super::experts::{self, ExpertWork, Experts};
use super::kv::{Int8Latents, KvLayer, KvPool};
use super::linear::{PackedMatrix, Store};
use super::rows::{gate_heads, gate_rows, latent, rope, streams};
use super::state_layer::StateLayer;
use super::storage::Storage;
use super::{activation, attention, norm, split, states};
use crate::backend::check_batch::validate_batch;
use crate::backend::op_args::check_written;
use crate::backend::{
    Activate, AddNorm, AddRows, Attention, Backend, BufferShape, Content, Copied, CopyBlocks, DeltaNet,
    DeltaNetWeights, Embed, ExpertCacheUse, Fusions, GateColumns, GateHeads, GateRows, GatedActivation, GatherRows,
    HeadProducts, JoinRows, LevelRows, Linear, Mamba, Mamba2, Mamba2Weights, MambaConvolution, MemoryLedger,
    MixExperts, NormInPlace, NormRows, Ops, Part, QkNorms, RopeAndStore, RopeAndStoreLatent, RopeAngles, RopeShape,
    RopeSpec, Rotation, STREAMS, ScaleRows, ShortConvolution, Sparsify, StepOps, Streams, TableRow,
};
use crate::batch::{Batch, GroupTables};
use crate::interrupt::Interrupt;
use crate::{Error, Result};

impl Backend for CpuBackend {
    type Buffer = Storage<f32>;
    type Matrix = PackedMatrix;
    type HeadMatrices = HeadMatrices;
    type Vector = Storage<f32>;
    type Rope = RopeSpec;
    type KvLayer = KvLayer;
    type StateLayer = StateLayer;
    type Experts = Experts;
    type ExpertWork = ExpertWork;
    type Step<'s> = CpuStep<'s>;

    const ASYNCHRONOUS: bool = false;

    fn interrupt(&self) -> Option<&Interrupt> {
        Some(self.pool.interrupt())
    }

    fn step(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()> {
        validate_batch(batch)?;
        if let Some(chosen) = batch.chosen.first() {
            return Err(Error::internal(format!("{chosen:?}, of a backend that leaves no choice on the device")));
        }
        let mut step = CpuStep { cpu: self, batch };
        ops(&mut step)?;
        step.check_interrupt()
    }

    fn normed_rows<'a>(&'a mut self, args: NormRows<'a, Self>) -> Result<&'a [f32]> {
        let (rows, cols) = (args.rows, args.cols());
        args.validate()?;
        let NormRows { x, norm, out, .. } = args;
        norm::norm(&self.pool, self.isa, &x[..rows * cols], norm, None, &mut out[..rows * cols]);
        self.to_host(out, rows, cols)
    }

    fn write_rows(&mut self, buffer: &mut Storage<f32>, first: usize, values: &[f32], cols: usize) -> Result<()> {
        check_written(buffer, first, values, cols)?;
        buffer[first * cols..][..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn to_host<'a>(&'a mut self, buffer: &'a Storage<f32>, rows: usize, cols: usize) -> Result<&'a [f32]> {
        let elements = rows.checked_mul(cols).and_then(|n| buffer.get(..n));
        elements.ok_or_else(|| Error::internal(format!("{rows} rows of {cols} of a buffer of {}", buffer.room())))
    }

    fn expert_cache(&self) -> ExpertCacheUse {
        ExpertCacheUse::default()
    }

    fn prepare_copies(&mut self, _staged: &[(u64, usize)]) -> Result<()> {
        Ok(())
    }

    fn copy_out(&mut self, number: u64, parts: &mut [Part<'_, Self>]) -> Result<bool> {
        self.copy_out_now(number, parts).map(|()| true)
    }

    fn copied(&mut self, _wait: bool) -> Result<Option<Copied>> {
        Ok(self.take_copied())
    }

    fn copy_in(&mut self, number: u64, parts: &mut [Part<'_, Self>], content: &Content) -> Result<bool> {
        self.copy_in_now(number, parts, content).map(|()| true)
    }

    fn copied_in(&mut self, _wait: bool) -> Result<Option<u64>> {
        Ok(self.take_copied_in())
    }

    fn recycle(&mut self, content: Content) -> Result<()> {
        drop(content);
        Ok(())
    }

    /// Copies end at once.
    fn order_copies(&mut self) -> Result<()> {
        Ok(())
    }

    fn memory(&self) -> MemoryLedger {
        self.ledger
    }

    fn device_allocations(&self) -> u64 {
        self.allocations
    }

    fn describe(&self) -> String {
        let kernels: Vec<_> = self.kernels.iter().map(|(ty, kernel)| format!("{} {kernel}", ty.name())).collect();
        let (isa, threads) = (self.isa.name(), self.pool.num_threads());
        format!("CPU, {threads} threads; norms, attention, activations: {isa}; linear: {}", kernels.join(", "))
    }
}

/// One step on the CPU. Ops are finished when they return.
pub struct CpuStep<'s> {
    cpu: &'s mut CpuBackend,
    batch: &'s Batch,
}

impl CpuStep<'_> {
    fn tables(&self, group: usize) -> Result<&GroupTables> {
        let have = self.batch.groups.len();
        self.batch.groups.get(group).ok_or_else(|| Error::internal(format!("KV group {group} of a batch with {have}")))
    }
}

impl Ops<CpuBackend> for CpuStep<'_> {
    fn num_tokens(&self) -> usize {
        self.batch.num_tokens()
    }

    fn num_logits(&self) -> usize {
        self.batch.logits_indices.len()
    }

    fn check_interrupt(&self) -> Result<()> {
        self.cpu.pool.interrupt().check()
    }

    fn embed(&mut self, args: Embed<'_, CpuBackend>) -> Result<()> {
        let tokens = self.num_tokens();
        args.validate(tokens)?;
        let Embed { table, scale, out } = args;
        if let Some(id) = self.batch.token_ids.iter().find(|&&id| id as usize >= table.rows()) {
            return Err(Error::invalid("token id", id, format!("less than the vocabulary's {}", table.rows())));
        }
        let cols = table.cols();
        split::for_rows(&self.cpu.pool, &mut out[..tokens * cols], cols, |first, out| {
            for (row, &id) in out.chunks_exact_mut(cols).zip(&self.batch.token_ids[first..]) {
                table.dequantize_row(id as usize, row);
                if scale != 1.0 {
                    row.iter_mut().for_each(|x| *x *= scale);
                }
            }
        });
        Ok(())
    }

    fn add_rows(&mut self, args: AddRows<'_, CpuBackend>) -> Result<()> {
        let tokens = self.num_tokens();
        args.validate(tokens)?;
        let rows = args.table_rows();
        let AddRows { table, cols, row, out } = args;
        row.check(self.batch, rows)?;
        let batch = self.batch;
        let second = |token: usize, separator: u32| {
            let start = token - batch.positions[token] as usize;
            usize::from(batch.token_ids[start..token].contains(&separator))
        };
        split::for_rows(&self.cpu.pool, &mut out[..tokens * cols], cols, |first, out| {
            for (token, out) in (first..).zip(out.chunks_exact_mut(cols)) {
                let index = match row {
                    TableRow::OfPosition => batch.positions[token] as usize,
                    TableRow::First => 0,
                    TableRow::SecondBehind(separator) => second(token, separator),
                };
                out.iter_mut().zip(&table[index * cols..]).for_each(|(out, x)| *out += x);
            }
        });
        Ok(())
    }

    fn norm_in_place(&mut self, args: NormInPlace<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let n = args.rows * args.cols();
        norm::norm_in_place(&self.cpu.pool, self.cpu.isa, &mut args.x[..n], args.norm);
        Ok(())
    }

    fn norm_rows(&mut self, args: NormRows<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let n = args.rows * args.cols();
        let NormRows { x, norm, out, .. } = args;
        norm::norm(&self.cpu.pool, self.cpu.isa, &x[..n], norm, None, &mut out[..n]);
        Ok(())
    }

    fn add_norm(&mut self, args: AddNorm<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let n = args.rows * args.cols();
        let AddNorm { x, norm, out, factor, .. } = args;
        norm::norm(&self.cpu.pool, self.cpu.isa, &x[..n], norm, Some(factor), &mut out[..n]);
        Ok(())
    }

    fn linear(&mut self, args: Linear<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let Linear { x, matrix, rows, out, add } = args;
        let (x, out) = (&x[..rows * matrix.cols()], &mut out[..rows * matrix.rows()]);
        let store = if add { Store::Add } else { Store::Assign };
        matrix.multiply(x, rows, out, store, &mut self.cpu.linear_scratch, &self.cpu.pool);
        Ok(())
    }

    fn gated_activation(&mut self, args: GatedActivation<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let GatedActivation { gate_up, activation, rows, cols, out } = args;
        let (gate_up, out) = (&gate_up[..rows * 2 * cols], &mut out[..rows * cols]);
        activation::gated(&self.cpu.pool, self.cpu.isa, gate_up, activation, cols, out);
        Ok(())
    }

    fn gate_columns(&mut self, args: GateColumns<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let GateColumns { gate, x, x_cols, first, activation, rows, cols, out } = args;
        let columns = activation::Columns { rows: &x[..rows * x_cols], cols: x_cols, first };
        let (gate, out) = (&gate[..rows * cols], &mut out[..rows * cols]);
        activation::gate_columns(&self.cpu.pool, self.cpu.isa, gate, columns, activation, cols, out);
        Ok(())
    }

    fn activation(&mut self, args: Activate<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let Activate { x, activation, rows, cols, out } = args;
        let (x, out) = (&x[..rows * cols], &mut out[..rows * cols]);
        activation::plain(&self.cpu.pool, self.cpu.isa, x, activation, cols, out);
        Ok(())
    }

    fn scale_rows(&mut self, args: ScaleRows<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let ScaleRows { x, rows, cols, columns, scale, cap } = args;
        activation::scale_rows(&self.cpu.pool, self.cpu.isa, &mut x[..rows * cols], (cols, columns), (scale, cap));
        Ok(())
    }

    fn gate_rows(&mut self, args: GateRows<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let GateRows { x, norm, weight, rows, cols, out } = args;
        let norm = norm.map(|norm| (&**norm.weight, norm.eps));
        let (x, out) = (&x[..rows * weight.len()], &mut out[..rows * cols]);
        gate_rows::gate_rows(&self.cpu.pool, self.cpu.isa, x, norm, weight, cols, out);
        Ok(())
    }

    fn gate_heads(&mut self, args: GateHeads<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let GateHeads { gate, function, rows, heads, cols, out } = args;
        let (gate, out) = (&gate[..rows * heads], &mut out[..rows * heads * cols]);
        gate_heads::gate_heads(&self.cpu.pool, gate, function, [heads, cols], out);
        Ok(())
    }

    fn experts(&mut self, args: MixExperts<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let n = args.rows * args.experts.spec.hidden_size;
        let MixExperts { x, routed, experts, work, out, add, .. } = args;
        let store = if add { Store::Add } else { Store::Assign };
        let CpuBackend { isa, linear_scratch, pool, .. } = &mut *self.cpu;
        let sum = experts::Sum { rows: &mut out[..n], store };
        experts::run(experts, [&x[..n], &routed.unwrap_or(x)[..n]], work, sum, *isa, linear_scratch, pool);
        Ok(())
    }

    fn rope_angles(&mut self, args: RopeAngles<'_, CpuBackend>) -> Result<()> {
        args.validate(self.num_tokens())?;
        let RopeAngles { rope, out } = args;
        let n = self.num_tokens() * 2 * rope.num_pairs();
        rope::angles(&self.cpu.pool, rope, &self.batch.first_rope_positions(), &mut out[..n]);
        Ok(())
    }

    fn rope_and_store_kv(&mut self, args: RopeAndStore<'_, CpuBackend>) -> Result<()> {
        let tokens = self.num_tokens();
        args.validate(tokens)?;
        let RopeAndStore { qkv, layout, rotation, group, kv } = args;
        let slots = &self.tables(group)?.slot_mapping;
        kv.check_slots(slots)?;
        let qkv = &mut qkv[..tokens * layout.cols()];
        let (pool, isa) = (&self.cpu.pool, self.cpu.isa);
        let rotation = match rotation.norms {
            Some(QkNorms { q, k, eps, .. }) if rotation.norms.is_some_and(|norms| norms.is_of_rows(layout)) => {
                let first = layout.gate_cols();
                norm::norm_columns(pool, isa, qkv, layout.cols(), first, q, eps);
                if let Some(k) = k {
                    norm::norm_columns(pool, isa, qkv, layout.cols(), first + layout.q_cols(), k, eps);
                }
                Rotation { norms: None, ..rotation }
            }
            _ => rotation,
        };
        let rows = rope::RopeAndStore { layout, rotation, positions: &self.batch.positions, slots };
        match &mut kv.pool {
            KvPool::F16(pages) => rows.run_on(pool, isa, qkv, &pages.writer()),
            KvPool::F32(pages) => rows.run_on(pool, isa, qkv, &pages.writer()),
            KvPool::Int8(pages) => rows.run_on(pool, isa, qkv, &pages.writer()),
            KvPool::Int4(pages) => rows.run_on(pool, isa, qkv, &pages.writer()),
        }
        Ok(())
    }

    fn head_products(&mut self, args: HeadProducts<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        let HeadProducts { x, x_head, matrices: HeadMatrices { stack, .. }, rows, out, out_head } = args;
        stack.multiply_heads((x, x_head), rows, (out, out_head), &mut self.cpu.linear_scratch, &self.cpu.pool);
        Ok(())
    }

    fn rope_and_store_latent(&mut self, args: RopeAndStoreLatent<'_, CpuBackend>) -> Result<()> {
        let tokens = self.num_tokens();
        args.validate(tokens)?;
        let RopeAndStoreLatent { q, queries, latent, shape, norm, eps, rope, angles, temperature, group, kv } = args;
        let slots = &self.tables(group)?.slot_mapping;
        kv.check_slots(slots)?;
        let positions = &self.batch.positions;
        let kind = rope.kind;
        let rows = latent::RopeAndStore { q, latent, shape, norm, eps, kind, angles, temperature, positions, slots };
        let queries = &mut queries[..tokens * shape.queries().q_cols()];
        match &mut kv.pool {
            KvPool::F16(pages) => rows.run_on(&self.cpu.pool, self.cpu.isa, queries, &pages.writer()),
            KvPool::F32(pages) => rows.run_on(&self.cpu.pool, self.cpu.isa, queries, &pages.writer()),
            KvPool::Int8(pages) => rows.run_on(&self.cpu.pool, self.cpu.isa, queries, &pages.writer()),
            KvPool::Int4(_) => return Err(Error::internal("latent rows in int4")),
        }
        Ok(())
    }

    fn attention(&mut self, args: Attention<'_, CpuBackend>) -> Result<()> {
        let tokens = self.num_tokens();
        args.validate(tokens)?;
        self.tables(args.group)?;
        let Attention { qkv, layout, scoring, sinks, biases, group, kv, out } = args;
        let (sinks, biases) = (sinks.map(|sinks| &**sinks), biases.map(|biases| &**biases));
        let out = &mut out[..tokens * layout.out_cols()];
        let (qkv, batch) = (&qkv[..tokens * layout.cols()], self.batch);
        let CpuBackend { pool, isa, units, .. } = &mut *self.cpu;
        match &kv.pool {
            KvPool::F16(kv) => attention::Attention { qkv, layout, scoring, sinks, biases, batch, group, kv }
                .run_on(pool, *isa, units, out),
            KvPool::F32(kv) => attention::Attention { qkv, layout, scoring, sinks, biases, batch, group, kv }
                .run_on(pool, *isa, units, out),
            KvPool::Int8(kv) if kv.spec.latent.is_some() => {
                let kv = &Int8Latents(kv);
                attention::Attention { qkv, layout, scoring, sinks, biases, batch, group, kv }
                    .run_on(pool, *isa, units, out)
            }
            KvPool::Int8(kv) => attention::Attention { qkv, layout, scoring, sinks, biases, batch, group, kv }
                .run_on(pool, *isa, units, out),
            KvPool::Int4(kv) => attention::Attention { qkv, layout, scoring, sinks, biases, batch, group, kv }
                .run_on(pool, *isa, units, out),
        }
    }

    fn delta_net(&mut self, args: DeltaNet<'_, CpuBackend>) -> Result<()> {
        let (tokens, batch) = (self.num_tokens(), self.batch);
        args.validate(tokens)?;
        args.state.spec.check(batch)?;
        let DeltaNet { x, shape, weights, eps, state, convolved, out } = args;
        let DeltaNetWeights { taps, decay, decay_bias, norm } = weights;
        let x = &x[..tokens * shape.cols()];
        let (convolved, out) = (&mut convolved[..tokens * shape.channels()], &mut out[..tokens * shape.value_cols()]);
        states::DeltaNet { x, shape, taps, decay, decay_bias, norm, eps, batch }.run_on(
            &self.cpu.pool,
            self.cpu.isa,
            state,
            convolved,
            out,
        );
        Ok(())
    }

    fn mamba2(&mut self, args: Mamba2<'_, CpuBackend>) -> Result<()> {
        let (tokens, batch) = (self.num_tokens(), self.batch);
        args.validate(tokens)?;
        args.state.spec.check(batch)?;
        let Mamba2 { x, shape, weights, eps, state, convolved, out } = args;
        let Mamba2Weights { taps, taps_bias, decay, step_bias, skip, norm } = weights;
        let (taps_bias, norm) = (taps_bias.map(|bias| &**bias), norm.map(|norm| &**norm));
        let x = &x[..tokens * shape.cols()];
        let (convolved, out) = (&mut convolved[..tokens * shape.channels()], &mut out[..tokens * shape.inner_cols()]);
        states::Mamba2 { x, shape, taps, taps_bias, decay, step_bias, skip, norm, eps, batch }.run_on(
            &self.cpu.pool,
            self.cpu.isa,
            state,
            convolved,
            out,
        );
        Ok(())
    }

    fn mamba_convolution(&mut self, args: MambaConvolution<'_, CpuBackend>) -> Result<()> {
        let (tokens, batch) = (self.num_tokens(), self.batch);
        args.validate(tokens)?;
        args.state.spec.check(batch)?;
        let MambaConvolution { x, shape, taps, taps_bias, state, out } = args;
        let (x, taps_bias) = (&x[..tokens * shape.cols()], taps_bias.map(|bias| &**bias));
        let out = &mut out[..tokens * shape.channels];
        states::MambaConvolution { x, shape, taps, taps_bias, state, batch }.run_on(&self.cpu.pool, self.cpu.isa, out);
        Ok(())
    }

    fn mamba(&mut self, args: Mamba<'_, CpuBackend>) -> Result<()> {
        let (tokens, batch) = (self.num_tokens(), self.batch);
        args.validate(tokens)?;
        args.state.spec.check(batch)?;
        let Mamba { x, shape, convolved, time_steps, b, c, decay, skip, state, out } = args;
        let out = &mut out[..tokens * shape.channels];
        states::Mamba { x, shape, convolved, time_steps, b, c, decay, skip, batch }.run_on(
            &self.cpu.pool,
            self.cpu.isa,
            state,
            out,
        );
        Ok(())
    }

    fn short_convolution(&mut self, args: ShortConvolution<'_, CpuBackend>) -> Result<()> {
        let (tokens, batch) = (self.num_tokens(), self.batch);
        args.validate(tokens)?;
        args.state.spec.check(batch)?;
        let ShortConvolution { x, shape, taps, state, out } = args;
        let (x, out) = (&x[..tokens * shape.cols()], &mut out[..tokens * shape.channels]);
        states::ShortConvolution { x, shape, taps, batch }.run_on(&self.cpu.pool, self.cpu.isa, state, out);
        Ok(())
    }

    fn join_rows(&mut self, args: JoinRows<'_, CpuBackend>) -> Result<()> {
        let (tokens, batch) = (self.num_tokens(), self.batch);
        args.validate(tokens)?;
        let JoinRows { left, right, cols, previous, out } = args;
        previous.as_ref().map_or(Ok(()), |state| state.spec.check(batch))?;
        let (left, right) = (&left[..tokens * cols], &right[..tokens * cols]);
        let joined = states::JoinRows { left, right, cols, batch };
        joined.run_on(&self.cpu.pool, previous, &mut out[..2 * tokens * cols]);
        Ok(())
    }

    fn sparsify(&mut self, args: Sparsify<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        streams::sparsify(&self.cpu.pool, self.cpu.isa, args);
        Ok(())
    }

    fn level_rows(&mut self, args: LevelRows<'_, CpuBackend>) -> Result<()> {
        args.validate()?;
        streams::level_rows(&self.cpu.pool, self.cpu.isa, args);
        Ok(())
    }

    fn predict_streams(&mut self, args: Streams<'_, CpuBackend>) -> Result<()> {
        args.validate(STREAMS)?;
        streams::predict(&self.cpu.pool, self.cpu.isa, args);
        Ok(())
    }

    fn correct_streams(&mut self, args: Streams<'_, CpuBackend>) -> Result<()> {
        args.validate(1)?;
        streams::correct(&self.cpu.pool, self.cpu.isa, args);
        Ok(())
    }

    fn gather_rows(&mut self, args: GatherRows<'_, CpuBackend>) -> Result<()> {
        args.validate(self.num_tokens(), self.num_logits())?;
        let (n, indices) = (self.num_logits() * args.cols, &self.batch.logits_indices);
        let GatherRows { x, cols, out } = args;
        split::for_rows(&self.cpu.pool, &mut out[..n], cols, |first, out| {
            for (row, &index) in out.chunks_exact_mut(cols).zip(&indices[first..]) {
                row.copy_from_slice(&x[index as usize * cols..][..cols]);
            }
        });
        Ok(())
    }

    fn copy_blocks(&mut self, args: CopyBlocks<'_, CpuBackend>) -> Result<()> {
        args.validate(&self.batch.block_copies)?;
        let CopyBlocks { group, kv } = args;
        for copy in self.batch.block_copies.iter().filter(|copy| copy.group as usize == group) {
            kv.copy_block(copy.src, copy.dst);
        }
        Ok(())
    }
}

impl Fusions<CpuBackend> for CpuStep<'_> {}
