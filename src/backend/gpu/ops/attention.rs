//! RoPE, the cache, and attention over it.

use crate::backend::gpu::DevicePtr;
use crate::backend::gpu::args::{
    AttentionArgs as AttentionKernelArgs, CopyBlocksArgs, Format, RopeAnglesArgs, RopeStoreArgs,
};
use crate::backend::gpu::backend::{GpuBackend, MAX_PAIRS};
use crate::backend::gpu::buffer::{Buffer, KvLayer, Vector, count};
use crate::backend::gpu::checks::Check;
use crate::backend::gpu::tuning::{self, DecodePlan};
use crate::backend::{AttentionArgs, QkvLayout, RopeKind, RopeSpec, Rotation};
use crate::batch::Batch;
use crate::{Error, Result};

/// Heads of a block of `rope_store`; `ROPE_STORE_HEADS` in `args.h`.
const ROPE_STORE_HEADS: usize = 8;

/// A `Rotation` as kernels take it.
struct RotationArgs {
    /// Where K and V go; null where nothing is rotated.
    slot_mapping: DevicePtr,
    q_norm: DevicePtr,
    k_norm: DevicePtr,
    angles: DevicePtr,
    num_pairs: u32,
    neox: u32,
    eps: f32,
}

impl RotationArgs {
    const NONE: Self = Self {
        slot_mapping: DevicePtr::NULL,
        q_norm: DevicePtr::NULL,
        k_norm: DevicePtr::NULL,
        angles: DevicePtr::NULL,
        num_pairs: 0,
        neox: 0,
        eps: 0.0,
    };
}

impl GpuBackend {
    pub(in super::super) fn angles(&mut self, spec: &RopeSpec, batch: &Batch, out: &mut Buffer) -> Result<()> {
        let (rows, num_pairs) = (self.rows(batch)?, spec.inv_freq.len());
        self.upload_frequencies(spec)?;
        let args = RopeAnglesArgs {
            positions: self.inputs.positions(),
            inv_freq: self.inv_freq.ptr(),
            out: out.write("the buffer of angles", rows, 2 * num_pairs, Format::F32)?,
            rows: count(rows)?,
            num_pairs: count(num_pairs)?,
            magnitude: spec.magnitude,
        };
        let threads = rows * num_pairs;
        if threads == 0 {
            return Ok(());
        }
        // SAFETY: see `ops`.
        unsafe { self.stream.launch(&self.functions.rope_angles, [count(threads.div_ceil(256))?, 1, 1], &args) }
    }

    /// Once per model: the first step comes with the frequencies.
    fn upload_frequencies(&mut self, spec: &RopeSpec) -> Result<()> {
        if self.rope.as_ref() == Some(spec) {
            return Ok(());
        }
        if spec.inv_freq.len() > MAX_PAIRS {
            return Err(Error::internal(format!("RoPE of {} pairs, at most {MAX_PAIRS}", spec.inv_freq.len())));
        }
        let places = self.staging.as_mut_slice().as_chunks_mut().0;
        for (place, frequency) in places.iter_mut().zip(&spec.inv_freq) {
            *place = frequency.to_ne_bytes();
        }
        let bytes = &self.staging.as_slice()[..4 * spec.inv_freq.len()];
        // SAFETY: nothing else uses the memory within a step before its results are brought, and none does after an
        // error: the next step waits for the stream first.
        unsafe { self.stream.copy_to_device(self.inv_freq.ptr(), bytes)? };
        self.stream.synchronize()?;
        self.rope = Some(spec.clone());
        Ok(())
    }

    /// Checks what rotates the batch's rows, and where their K and V go.
    fn rotation_args(
        &mut self,
        rotation: Rotation<'_, Vector, Buffer>,
        layout: QkvLayout,
        batch: &Batch,
        group: usize,
        kv: &KvLayer,
    ) -> Result<RotationArgs> {
        let Rotation { norms, eps, rope, angles } = rotation;
        let (rows, num_pairs, head_dim) = (self.rows(batch)?, rope.inv_freq.len(), layout.head_dim);
        if 2 * num_pairs > head_dim {
            return Err(Error::internal(format!("RoPE rotates {num_pairs} pairs of heads of {head_dim}")));
        }
        self.inputs.check(batch, Check::Slots { group, spec: kv.spec })?;
        let [q_norm, k_norm] = norms.map(|norm| norm.map_or(Ok(DevicePtr::NULL), |norm| norm.read(head_dim)));
        Ok(RotationArgs {
            slot_mapping: self.inputs.slots(),
            q_norm: q_norm?,
            k_norm: k_norm?,
            angles: angles.read_f32("the buffer of angles", rows, 2 * num_pairs)?,
            num_pairs: count(num_pairs)?,
            neox: u32::from(rope.kind == RopeKind::Neox),
            eps,
        })
    }

    pub(in super::super) fn rope_store(
        &mut self,
        qkv: &mut Buffer,
        layout: QkvLayout,
        rotation: Rotation<'_, Vector, Buffer>,
        batch: &Batch,
        group: usize,
        kv: &mut KvLayer,
    ) -> Result<()> {
        check_heads(layout, kv)?;
        let rows = self.rows(batch)?;
        let RotationArgs { slot_mapping, q_norm, k_norm, angles, num_pairs, neox, eps } =
            self.rotation_args(rotation, layout, batch, group, kv)?;
        let args = RopeStoreArgs {
            qkv: qkv.read_f32("qkv", rows, layout.cols())?,
            q_norm,
            k_norm,
            angles,
            slot_mapping,
            k_cache: kv.k,
            v_cache: kv.v,
            rows: count(rows)?,
            num_heads: count(layout.num_heads)?,
            num_kv_heads: count(layout.num_kv_heads)?,
            head_dim: count(layout.head_dim)?,
            block_size: count(kv.spec.block_size)?,
            num_pairs,
            neox,
            eps,
        };
        if rows == 0 {
            return Ok(());
        }
        let heads = layout.num_heads + 2 * layout.num_kv_heads;
        let grid = [count(rows)?, count(heads.div_ceil(ROPE_STORE_HEADS))?, 1];
        // SAFETY: see `ops`; the slots were checked against the cache.
        unsafe { self.stream.launch(&self.functions.cache()?.rope_store, grid, &args) }
    }

    /// Whether attention's kernel rotates q and k and stores K and V itself: that of single rows can. Not where results
    /// may not depend on the batch: rows of a chunk are rotated by another kernel.
    pub(in super::super) fn rotates_in_attention(&self, args: AttentionArgs) -> bool {
        let shape = &self.inputs.shape;
        shape.decode_items == shape.tokens && !self.options.batch_invariant && args.window != Some(0)
    }

    /// Attention; with a `rotation`, of q as it was projected, k and v of the same tokens being stored on the way.
    #[allow(clippy::too_many_arguments)] // the op's
    pub(in super::super) fn attend(
        &mut self,
        qkv: &Buffer,
        layout: QkvLayout,
        rotation: Option<Rotation<'_, Vector, Buffer>>,
        args: AttentionArgs,
        batch: &Batch,
        group: usize,
        kv: &KvLayer,
        out: &mut Buffer,
    ) -> Result<()> {
        check_heads(layout, kv)?;
        let rows = self.rows(batch)?;
        let RotationArgs { slot_mapping, q_norm, k_norm, angles, num_pairs, neox, eps } = match rotation {
            Some(rotation) => self.rotation_args(rotation, layout, batch, group, kv)?,
            None => RotationArgs::NONE,
        };
        self.inputs.check(batch, Check::Tables { group, spec: kv.spec, window: args.window })?;
        let format = self.activation_format(self.common, rows);
        let (qkv, out) = (
            qkv.read_f32("qkv", rows, layout.cols())?,
            out.write("attention's output", rows, layout.q_cols(), format)?,
        );
        if args.window == Some(0) {
            // The kernels take 0 for "no window".
            // SAFETY: see `ops`.
            return unsafe { self.stream.fill(out, 0, format.bytes(rows, layout.q_cols())) };
        }
        let (num_heads, num_kv_heads) = (count(layout.num_heads)?, count(layout.num_kv_heads)?);
        let head_dim = count(layout.head_dim)?;
        let shape = &self.inputs.shape;
        let decode_items = count(self.graphs.recording().unwrap_or(shape.decode_items))?;
        let prefill_items = count(shape.prefill_items)?;
        let (heads, most, invariant) =
            ([num_heads, num_kv_heads, head_dim], shape.context_splits, self.options.batch_invariant);
        let DecodePlan { per_head, splits } =
            tuning::decode_plan(decode_items, heads, self.multiprocessors(), most, invariant);
        if !self.attention_shapes.contains(&heads) {
            self.attention_shapes.push(heads);
        }
        let mut args = AttentionKernelArgs {
            qkv,
            k_cache: kv.k,
            v_cache: kv.v,
            out,
            partial: self.partial,
            counters: self.counters,
            items: self.inputs.decode_items(),
            q_start: self.inputs.q_start(),
            context_lens: self.inputs.context_lens(),
            block_start: self.inputs.block_start(),
            block_tables: self.inputs.block_tables(),
            sinks: DevicePtr::NULL,
            slot_mapping,
            q_norm,
            k_norm,
            angles,
            num_pairs,
            neox,
            eps,
            num_heads,
            num_kv_heads,
            head_dim,
            block_size: count(kv.spec.block_size)?,
            splits,
            window: args.window.unwrap_or(0),
            format_out: format,
            scale: args.scale,
            softcap: args.softcap.unwrap_or(0.0),
        };
        let functions = self.functions.cache()?;
        if decode_items > 0 {
            let (kernel, heads) = match per_head {
                true => (&functions.decode_head, num_heads),
                false => (&functions.decode, num_kv_heads),
            };
            // SAFETY: see `ops`; the block tables were checked against the cache.
            unsafe { self.stream.launch(kernel, [decode_items, heads, splits], &args)? };
        }
        if prefill_items > 0 {
            args.items = self.inputs.prefill_items();
            // SAFETY: as above.
            unsafe { self.stream.launch(&functions.prefill, [num_heads, prefill_items, 1], &args)? };
        }
        Ok(())
    }

    pub(in super::super) fn copy_kv_blocks(&mut self, batch: &Batch, group: usize, kv: &mut KvLayer) -> Result<()> {
        if let Some(copy) = batch.block_copies.iter().find(|copy| copy.group as usize != group) {
            return Err(Error::internal(format!("a copy in KV group {}, the device has group {group}", copy.group)));
        }
        let num_blocks = kv.spec.num_blocks as u64;
        if let Some(copy) = batch.block_copies.iter().find(|c| u64::from(c.src.max(c.dst)) >= num_blocks) {
            return Err(Error::internal(format!("{copy:?} is outside the pool of {num_blocks} blocks")));
        }
        if batch.block_copies.is_empty() {
            return Ok(());
        }
        self.rows(batch)?;
        if batch.block_copies.len() != self.inputs.shape.num_copies {
            return Err(Error::internal("copy_blocks on another batch than the step's"));
        }
        // Of K, and of V.
        let bytes = kv.spec.block_bytes().unwrap_or(0) / 2;
        let block_bytes = u32::try_from(bytes).map_err(|_| Error::internal(format!("blocks of {bytes} bytes")))?;
        let num_pairs = count(batch.block_copies.len())?;
        let args = CopyBlocksArgs { k_cache: kv.k, v_cache: kv.v, pairs: self.inputs.copies(), num_pairs, block_bytes };
        // SAFETY: see `ops`; the blocks were checked.
        unsafe { self.stream.launch(&self.functions.copy_blocks, [block_bytes.div_ceil(4096), num_pairs, 1], &args) }
    }
}

fn check_heads(layout: QkvLayout, kv: &KvLayer) -> Result<()> {
    layout.validate()?;
    if (layout.num_kv_heads, layout.head_dim) != (kv.spec.num_kv_heads, kv.spec.head_dim) {
        return Err(Error::internal(format!("qkv of {layout:?} for a KV layer of {:?}", kv.spec)));
    }
    Ok(())
}
