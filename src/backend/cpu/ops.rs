//! The ops of [`Backend`]: arguments are checked here, then kernels run on the team.

use super::activation;
use super::attention::{Attention, Unit};
use super::experts::{self, ExpertWork, Experts};
use super::kv::{KvLayer, KvPool};
use super::linear::{LinearScratch, PackedMatrix, Store};
use super::norm;
use super::pool::ThreadPool;
use super::rope::{self, RopeAndStore};
use super::simd::Isa;
use super::split::for_rows;
use super::storage::Storage;
use crate::backend::{Activation, AttentionArgs, Backend, MemoryLedger, QkvLayout, RopeSpec, Rotation};
use crate::batch::Batch;
use crate::interrupt::Interrupt;
use crate::quant::GgmlType;
use crate::{Error, Result};

/// Computes on the CPU; made by [`super::CpuLoader`].
#[derive(Debug)]
pub struct CpuBackend {
    pool: ThreadPool,
    isa: Isa,
    linear_scratch: LinearScratch,
    /// Kept between calls of attention so that it is not allocated anew.
    units: Vec<Unit>,
    ledger: MemoryLedger,
    allocations: u64,
    kernels: Vec<(GgmlType, &'static str)>,
}

impl CpuBackend {
    pub(super) fn new(
        pool: ThreadPool,
        isa: Isa,
        linear_scratch: LinearScratch,
        ledger: MemoryLedger,
        allocations: u64,
        kernels: Vec<(GgmlType, &'static str)>,
    ) -> Self {
        Self { pool, isa, linear_scratch, units: Vec::new(), ledger, allocations, kernels }
    }

    #[cfg(test)]
    pub(super) fn work_list_bytes(&self) -> usize {
        self.units.capacity() * size_of::<Unit>()
    }
}

/// The first `rows * cols` elements of a buffer.
fn rows_of<'a>(what: &str, buffer: &'a [f32], rows: usize, cols: usize) -> Result<&'a [f32]> {
    let have = buffer.len();
    rows.checked_mul(cols).and_then(|n| buffer.get(..n)).ok_or_else(|| too_small(what, have, rows, cols))
}

fn rows_of_mut<'a>(what: &str, buffer: &'a mut [f32], rows: usize, cols: usize) -> Result<&'a mut [f32]> {
    let have = buffer.len();
    rows.checked_mul(cols).and_then(|n| buffer.get_mut(..n)).ok_or_else(|| too_small(what, have, rows, cols))
}

fn too_small(what: &str, have: usize, rows: usize, cols: usize) -> Error {
    Error::internal(format!("{what} has {have} elements, {rows} rows of {cols} were asked for"))
}

impl Backend for CpuBackend {
    type Buffer = Storage<f32>;
    type Matrix = PackedMatrix;
    type Vector = Storage<f32>;
    type KvLayer = KvLayer;
    type Experts = Experts;
    type ExpertWork = ExpertWork;

    const ASYNCHRONOUS: bool = false;

    fn begin_step(&mut self, batch: &Batch) -> Result<()> {
        crate::backend::args::validate_batch(batch)
    }

    fn interrupt(&self) -> Option<&Interrupt> {
        Some(self.pool.interrupt())
    }

    fn embed(&mut self, table: &PackedMatrix, batch: &Batch, scale: f32, out: &mut Storage<f32>) -> Result<()> {
        let cols = table.cols();
        if let Some(id) = batch.token_ids.iter().find(|&&id| id as usize >= table.rows()) {
            return Err(Error::invalid("token id", id, format!("less than the vocabulary's {}", table.rows())));
        }
        let out = rows_of_mut("embed's output", out, batch.num_tokens(), cols)?;
        for_rows(&self.pool, out, cols, |first, out| {
            for (row, &id) in out.chunks_exact_mut(cols).zip(&batch.token_ids[first..]) {
                table.dequantize_row(id as usize, row);
                if scale != 1.0 {
                    row.iter_mut().for_each(|x| *x *= scale);
                }
            }
        });
        Ok(())
    }

    fn rms_norm(
        &mut self,
        x: &Storage<f32>,
        weight: &Storage<f32>,
        eps: f32,
        rows: usize,
        out: &mut Storage<f32>,
    ) -> Result<()> {
        let x = rows_of("rms_norm's input", x, rows, weight.len())?;
        let out = rows_of_mut("rms_norm's output", out, rows, weight.len())?;
        norm::rms_norm(&self.pool, self.isa, x, weight, eps, out);
        Ok(())
    }

    fn linear(&mut self, matrix: &PackedMatrix, x: &Storage<f32>, rows: usize, out: &mut Storage<f32>) -> Result<()> {
        let x = rows_of("linear's input", x, rows, matrix.cols())?;
        let out = rows_of_mut("linear's output", out, rows, matrix.rows())?;
        matrix.multiply(x, rows, out, Store::Assign, &mut self.linear_scratch, &self.pool);
        Ok(())
    }

    fn linear_add(
        &mut self,
        matrix: &PackedMatrix,
        x: &Storage<f32>,
        rows: usize,
        residual: &mut Storage<f32>,
    ) -> Result<()> {
        let x = rows_of("linear's input", x, rows, matrix.cols())?;
        let residual = rows_of_mut("the residual", residual, rows, matrix.rows())?;
        matrix.multiply(x, rows, residual, Store::Add, &mut self.linear_scratch, &self.pool);
        Ok(())
    }

    fn experts(
        &mut self,
        experts: &Experts,
        norm: &Storage<f32>,
        eps: f32,
        rows: usize,
        normed: &mut Storage<f32>,
        work: &mut ExpertWork,
        residual: &mut Storage<f32>,
    ) -> Result<()> {
        let hidden = experts.spec.hidden_size;
        experts.spec.check_room(rows, &work.spec, work.rows)?;
        self.rms_norm(residual, norm, eps, rows, normed)?;
        let normed = rows_of("the experts' input", normed, rows, hidden)?;
        let residual = rows_of_mut("the residual", residual, rows, hidden)?;
        experts::run(experts, normed, work, residual, self.isa, &mut self.linear_scratch, &self.pool);
        Ok(())
    }

    fn rope_angles(&mut self, spec: &RopeSpec, batch: &Batch, out: &mut Storage<f32>) -> Result<()> {
        let out = rows_of_mut("the buffer of angles", out, batch.num_tokens(), 2 * spec.inv_freq.len())?;
        rope::angles(&self.pool, spec, &batch.positions, out);
        Ok(())
    }

    fn rope_and_store_kv(
        &mut self,
        qkv: &mut Storage<f32>,
        layout: QkvLayout,
        rotation: Rotation<'_, Storage<f32>, Storage<f32>>,
        batch: &Batch,
        group: usize,
        kv: &mut KvLayer,
    ) -> Result<()> {
        let Rotation { norms, eps, rope, angles } = rotation;
        check_heads(layout, kv)?;
        let num_pairs = rope.inv_freq.len();
        if 2 * num_pairs > layout.head_dim {
            return Err(Error::internal(format!("RoPE rotates {num_pairs} pairs of heads of {}", layout.head_dim)));
        }
        for norm in norms.into_iter().flatten() {
            if norm.len() != layout.head_dim {
                return Err(Error::internal(format!("norm of {} for heads of {}", norm.len(), layout.head_dim)));
            }
        }
        let slots = &tables(batch, group)?.slot_mapping;
        kv.check_slots(slots)?;
        let rows = slots.len();
        let qkv = rows_of_mut("qkv", qkv, rows, layout.cols())?;
        let angles = rows_of("the buffer of angles", angles, rows, 2 * num_pairs)?;
        let [q_norm, k_norm] = norms.map(|norm| norm.map(|weights| &**weights));
        let args = RopeAndStore { layout, q_norm, k_norm, eps, kind: rope.kind, num_pairs, angles, slots };
        match &mut kv.pool {
            KvPool::F16(pages) => args.run_on(&self.pool, self.isa, qkv, &pages.writer()),
            KvPool::F32(pages) => args.run_on(&self.pool, self.isa, qkv, &pages.writer()),
        }
        Ok(())
    }

    fn attention(
        &mut self,
        qkv: &Storage<f32>,
        layout: QkvLayout,
        args: AttentionArgs,
        batch: &Batch,
        group: usize,
        kv: &KvLayer,
        out: &mut Storage<f32>,
    ) -> Result<()> {
        check_heads(layout, kv)?;
        tables(batch, group)?;
        let qkv = rows_of("qkv", qkv, batch.num_tokens(), layout.cols())?;
        let out = rows_of_mut("attention's output", out, batch.num_tokens(), layout.q_cols())?;
        let (pool, isa, units) = (&self.pool, self.isa, &mut self.units);
        match &kv.pool {
            KvPool::F16(kv) => Attention { qkv, layout, args, batch, group, kv }.run_on(pool, isa, units, out),
            KvPool::F32(kv) => Attention { qkv, layout, args, batch, group, kv }.run_on(pool, isa, units, out),
        }
    }

    fn gated_activation(
        &mut self,
        gate_up: &Storage<f32>,
        activation: Activation,
        rows: usize,
        cols: usize,
        out: &mut Storage<f32>,
    ) -> Result<()> {
        let gate_up = rows_of("gate and up", gate_up, rows, cols.saturating_mul(2))?;
        let out = rows_of_mut("the activation's output", out, rows, cols)?;
        activation::gated(&self.pool, self.isa, gate_up, activation, cols, out);
        Ok(())
    }

    fn gather_rows(&mut self, x: &Storage<f32>, batch: &Batch, cols: usize, out: &mut Storage<f32>) -> Result<()> {
        let indices = &batch.logits_indices;
        let needed = indices.iter().max().map_or(0, |&index| index as usize + 1);
        let x = rows_of("gather_rows' input", x, needed, cols)?;
        let out = rows_of_mut("gather_rows' output", out, indices.len(), cols)?;
        for_rows(&self.pool, out, cols, |first, out| {
            for (row, &index) in out.chunks_exact_mut(cols).zip(&indices[first..]) {
                row.copy_from_slice(&x[index as usize * cols..][..cols]);
            }
        });
        Ok(())
    }

    fn copy_blocks(&mut self, batch: &Batch, group: usize, kv: &mut KvLayer) -> Result<()> {
        for copy in batch.block_copies.iter().filter(|copy| copy.group as usize == group) {
            kv.copy_block(copy.src, copy.dst)?;
        }
        Ok(())
    }

    fn to_host<'a>(&'a mut self, buffer: &'a Storage<f32>, rows: usize, cols: usize) -> Result<&'a [f32]> {
        rows_of("the buffer to read", buffer, rows, cols)
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

fn check_heads(layout: QkvLayout, kv: &KvLayer) -> Result<()> {
    layout.validate()?;
    if (layout.num_kv_heads, layout.head_dim) != (kv.spec.num_kv_heads, kv.spec.head_dim) {
        return Err(Error::internal(format!("qkv of {layout:?} for a KV layer of {:?}", kv.spec)));
    }
    Ok(())
}

fn tables(batch: &Batch, group: usize) -> Result<&crate::batch::GroupTables> {
    let have = batch.groups.len();
    batch.groups.get(group).ok_or_else(|| Error::internal(format!("KV group {group} of a batch with {have}")))
}
