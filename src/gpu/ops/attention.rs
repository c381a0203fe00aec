//! RoPE, the KV cache, and attention over it.

use super::rows::NormedRows;
use crate::DevicePtr;
use crate::GpuBackend;
use crate::backend::{
    Attention, CopyBlocks, KvLayerSpec, Norm, QkNorms, QkvLayout, RopeAndStore, RopeAngles, RopeAttention, RopeKind,
    Rotation, Temperature, VectorShape, bias_reach,
};
use crate::batch::GroupKind;
use crate::buffer::{Buffer, count};
use crate::gpu_backend::gpu_step::GpuStep;
use crate::launch::args::{
    ALL_BUT_FIRST, ATTENTION_LATENT_HEADS, AttentionArgs, CopyBlocksArgs, Format, LATENT_VALUES, ROPE_STORE_SHORT,
    ROPE_STORE_THREADS, ROTATION_NEOX, ROTATION_NORM_V, ROTATION_NORMS_LAST, RopeAnglesArgs, RopeStoreArgs,
    RotationArgs, WINDOW_OF_CHUNK,
};
use crate::launch::catalog::{
    ATTENTION_DECODE, ATTENTION_DECODE_HEAD, ATTENTION_DECODE_MMA, ATTENTION_DECODE_MMA_MANY, ATTENTION_LATENT_DECODE,
    ATTENTION_LATENT_DECODE_HEAD, ATTENTION_LATENT_PREFILL, ATTENTION_PREFILL, COPY_BLOCKS, ONCE, ROPE_ANGLES,
    ROPE_STORE, Subject, head_size,
};
use crate::launch::plans::{DecodePlan, SplitKvPlan};
use crate::step::checks::Check;
use crate::{Error, Result};

/// More tokens than any context has. Added to a position, the sum stays within 32 bits.
const MOST_AHEAD: u32 = 1 << 30;

/// No rotation: q, k and v are already rotated and stored.
const ROTATED: RotationArgs = RotationArgs {
    slot_mapping: DevicePtr::NULL,
    q_norm: DevicePtr::NULL,
    k_norm: DevicePtr::NULL,
    angles: DevicePtr::NULL,
    positions: DevicePtr::NULL,
    num_pairs: 0,
    flags: 0,
    eps: 0.0,
    temperature: 0.0,
    temperature_context: 0,
    temperature_offset: 0,
};

/// Checks the slots of the step's K and V, and returns the arguments of the rotation. Norms over all heads of a row are
/// computed here, in place.
fn rotation_args(
    step: &mut GpuStep<'_>,
    qkv: &mut Buffer,
    rotation: Rotation<'_, GpuBackend>,
    layout: QkvLayout,
    group: usize,
    spec: KvLayerSpec,
) -> Result<RotationArgs> {
    let Rotation { norms, rope, angles, temperature } = rotation;
    let Temperature { scale, context, offset } = temperature.unwrap_or(Temperature::NONE);
    step.inputs.check(step.batch, Check::Slots { group, spec })?;
    let of_rows = norms.filter(|norms| norms.is_of_rows(layout));
    if let Some(norms) = of_rows {
        norm_rows(step, qkv, norms, layout)?;
    }
    let of_heads = norms.filter(|_| of_rows.is_none());
    let neox = if rope.kind == RopeKind::Neox { ROTATION_NEOX } else { 0 };
    let norms_last = if of_heads.is_some_and(|norms| norms.after_rope) { ROTATION_NORMS_LAST } else { 0 };
    let norm_v = if of_heads.is_some_and(|norms| norms.v) { ROTATION_NORM_V } else { 0 };
    Ok(RotationArgs {
        slot_mapping: step.inputs.slots(group)?.ptr(),
        q_norm: of_heads.map(|norms| norms.q.read(layout.head_dim)).transpose()?.into(),
        k_norm: of_heads.and_then(|norms| norms.k).map(|k| k.read(layout.head_dim)).transpose()?.into(),
        angles: angles.read_f32("the buffer of angles", step.tokens, 2 * rope.num_pairs)?.ptr(),
        positions: step.inputs.positions()?.ptr(),
        num_pairs: count(rope.num_pairs)?,
        flags: neox | norms_last | norm_v,
        eps: of_heads.map_or(0.0, |norms| norms.eps),
        temperature: scale,
        temperature_context: context,
        temperature_offset: offset,
    })
}

/// Computes the norms over all heads of q, and over all heads of k.
fn norm_rows(
    step: &mut GpuStep<'_>,
    qkv: &mut Buffer,
    norms: QkNorms<'_, GpuBackend>,
    layout: QkvLayout,
) -> Result<()> {
    let start = qkv.read_f32("qkv", step.tokens, layout.cols())?;
    let (q, k) = (layout.gate_cols(), layout.gate_cols() + layout.q_cols());
    let of_k = norms.k.map(|weight| (weight, k, layout.k_cols()));
    for (weight, first, cols) in [(norms.q, q, layout.q_cols())].into_iter().chain(of_k) {
        let at = start.after(4 * first as u64)?;
        let rows = NormedRows::in_place(at, step.tokens, cols, layout.cols());
        step.compute.launcher().launch_norm_rows(&rows, Some(Norm::rms(weight, norms.eps)))?;
    }
    Ok(())
}

pub(super) fn rope_angles(step: &mut GpuStep<'_>, args: RopeAngles<'_, GpuBackend>) -> Result<()> {
    let RopeAngles { rope, out } = args;
    let (rows, num_pairs) = (step.tokens, rope.num_pairs);
    let args = RopeAnglesArgs {
        positions: step.inputs.positions()?.ptr(),
        inv_freq: rope.inv_freq.ptr(),
        out: out.write("the buffer of angles", rows, 2 * num_pairs, Format::F32)?.ptr(),
        rows: count(rows)?,
        num_pairs: count(num_pairs)?,
        magnitude: rope.magnitude,
    };
    let threads = rows * num_pairs;
    if threads == 0 {
        return Ok(());
    }
    let launcher = step.compute.launcher();
    // SAFETY: see `ops`.
    unsafe { launcher.launch(ROPE_ANGLES, ONCE, [count(threads.div_ceil(256))?, 1, 1], &args) }
}

pub(super) fn rope_and_store_kv(step: &mut GpuStep<'_>, args: RopeAndStore<'_, GpuBackend>) -> Result<()> {
    let RopeAndStore { qkv, layout, rotation, group, kv } = args;
    let rows = step.tokens;
    let num_kv_heads = if layout.has_kv { layout.num_kv_heads } else { 0 };
    let args = RopeStoreArgs {
        rotation: rotation_args(step, qkv, rotation, layout, group, kv.spec)?,
        qkv: qkv.read_f32("qkv", rows, layout.cols())?.after(4 * layout.gate_cols() as u64)?.ptr(),
        k_cache: kv.k.ptr(),
        v_cache: kv.v.ptr(),
        rows: count(rows)?,
        num_heads: count(layout.num_heads)?,
        num_kv_heads: count(num_kv_heads)?,
        row_cols: count(layout.cols())?,
        head_dim: count(layout.head_dim)?,
        value_dim: count(layout.value_dim)?,
        block_size: count(kv.spec.block_size)?,
    };
    if rows == 0 {
        return Ok(());
    }
    let threads_of_head = if layout.head_dim <= ROPE_STORE_SHORT as usize { 16 } else { 32 };
    let heads_of_block = (ROPE_STORE_THREADS / threads_of_head) as usize;
    let grid = [count(rows)?, count(layout.row_heads().div_ceil(heads_of_block))?, 1];
    let launcher = step.compute.launcher();
    // SAFETY: see `ops`; the slots were checked against the cache.
    unsafe { launcher.launch(ROPE_STORE, Subject::Cache(kv.spec.dtype), grid, &args) }
}

/// True if the attention kernel itself rotates q and k and stores K and V. Only the kernel for single rows does that,
/// of which no other row of the step may read the keys. No norm may come after RoPE, v has no norm, no temperature
/// multiplies q, and the rows hold k and v. The kernel adds no bias to the score of a token's own key.
fn rotates_in_attention(
    step: &GpuStep<'_>,
    rotation: &Rotation<'_, GpuBackend>,
    layout: QkvLayout,
    has_biases: bool,
) -> bool {
    let norms_last = rotation.norms.is_some_and(|norms| norms.after_rope && !norms.is_of_rows(layout));
    let norms_v = rotation.norms.is_some_and(|norms| norms.v);
    if norms_last || norms_v || rotation.temperature.is_some() || !layout.has_kv || has_biases {
        return false;
    }
    let shape = step.inputs.shape();
    shape.decode_items == shape.tokens && step.compute.launcher().tuning().attention.rotates
}

pub(super) fn rope_attention(step: &mut GpuStep<'_>, args: RopeAttention<'_, GpuBackend>) -> Result<()> {
    let RopeAttention { qkv, layout, rotation, scoring, sinks, biases, group, kv, out } = args;
    let rotation = match rotates_in_attention(step, &rotation, layout, biases.is_some()) {
        true => rotation_args(step, qkv, rotation, layout, group, kv.spec)?,
        false => {
            rope_and_store_kv(step, RopeAndStore { qkv: &mut *qkv, layout, rotation, group, kv: &mut *kv })?;
            ROTATED
        }
    };
    attend(step, Attention { qkv, layout, scoring, sinks, biases, group, kv, out }, rotation)
}

pub(super) fn attention(step: &mut GpuStep<'_>, args: Attention<'_, GpuBackend>) -> Result<()> {
    attend(step, args, ROTATED)
}

/// Returns the visible tokens in the form of the kernels. The first number is the window, which includes the token
/// itself (0: all), or the chunk. The second is the number of later tokens.
fn window_and_ahead(spec: &KvLayerSpec) -> (u32, u32) {
    match spec.kind {
        GroupKind::Full => (if spec.skips_first { ALL_BUT_FIRST } else { 0 }, 0),
        // Such a window covers all tokens.
        GroupKind::Sliding { window } => (if window < WINDOW_OF_CHUNK { window } else { 0 }, 0),
        GroupKind::Chunked { size } => (WINDOW_OF_CHUNK | size, 0),
        GroupKind::Bidirectional { reach } => (reach.checked_add(1).unwrap_or(0), reach.min(MOST_AHEAD)),
    }
}

/// Queues attention. With a `rotation` other than `ROTATED`, q is not rotated yet, and the kernel also stores k and v
/// of the same tokens.
fn attend(step: &mut GpuStep<'_>, args: Attention<'_, GpuBackend>, rotation: RotationArgs) -> Result<()> {
    let Attention { qkv, layout, scoring, sinks, biases, group, kv, out } = args;
    let rows = step.tokens;
    step.inputs.check(step.batch, Check::Tables { group, spec: kv.spec })?;
    let (is_latent, value_dim) = (kv.spec.latent.is_some(), layout.value_dim);
    // Results of latent attention go through products of heads; others go through the next matrix.
    let format = match is_latent {
        true => Format::F32,
        false => step.compute.activation_format(step.compute.common(), rows),
    };
    let qkv = qkv.read_f32("qkv", rows, layout.cols())?;
    let out = out.write("attention's output", rows, layout.out_cols(), format)?;
    let (num_heads, num_kv_heads) = (count(layout.num_heads)?, count(layout.num_kv_heads)?);
    let value_dim = count(value_dim)?;
    let shape = step.inputs.shape();
    let decode_items = count(step.captured.unwrap_or(shape.decode_items))?;
    let tiles = [count(shape.text_tiles)?, count(shape.image_tiles)?];
    // A block per query head, or per group of heads with the same keys; and the size of a head's result.
    let for_keys = if is_latent { num_heads.div_ceil(ATTENTION_LATENT_HEADS) } else { num_kv_heads };
    let heads = [num_heads, for_keys, value_dim];
    let (launcher, workspace) = (step.compute.launcher(), step.compute.workspace());
    let multiprocessors = launcher.multiprocessors();
    let (variant, [decode, decode_head, prefill]) = match is_latent {
        true => {
            let kernels = [ATTENTION_LATENT_DECODE, ATTENTION_LATENT_DECODE_HEAD, ATTENTION_LATENT_PREFILL];
            (Subject::Cache(kv.spec.dtype), kernels)
        }
        false => {
            let kernels = [ATTENTION_DECODE, ATTENTION_DECODE_HEAD, ATTENTION_PREFILL];
            (Subject::Head(kv.spec.dtype, head_size(layout.head_dim)?), kernels)
        }
    };
    let split_kv = match launcher.has(ATTENTION_DECODE_MMA, variant) {
        true => launcher.tuning().split_kv(decode_items, heads, multiprocessors),
        false => None,
    };
    let (decode, grid, splits, split_tokens) = if let Some(plan) = split_kv {
        let SplitKvPlan { splits, split_tokens, in_small_blocks } = plan;
        let kernel = if in_small_blocks { ATTENTION_DECODE_MMA_MANY } else { ATTENTION_DECODE_MMA };
        (kernel, [num_kv_heads, decode_items.saturating_add(splits), 1], splits, split_tokens)
    } else {
        if !step.attention_shapes.contains(&heads) {
            step.attention_shapes.push(heads);
        }
        let DecodePlan { per_head, splits } =
            launcher.tuning().attention_decode(decode_items, heads, multiprocessors, shape.context_splits);
        let (kernel, blocks) = if per_head { (decode_head, num_heads) } else { (decode, for_keys) };
        (kernel, [decode_items, blocks, splits], splits, 0)
    };
    let (window, ahead) = window_and_ahead(&kv.spec);
    let slopes = scoring.slopes(layout.num_heads);
    let alibi = if biases.is_some() { 1.0 } else { slopes.map_or(0.0, |slopes| slopes.step) };
    let mut args = AttentionArgs {
        rotation,
        qkv: qkv.after(4 * layout.gate_cols() as u64)?.ptr(),
        gate: layout.gated.then_some(qkv).into(),
        k_cache: kv.k.ptr(),
        v_cache: kv.v.ptr(),
        out: out.ptr(),
        partial: workspace.partial().ptr(),
        counters: workspace.counters().ptr(),
        items: step.inputs.decode_items()?.ptr(),
        q_start: step.inputs.q_start()?.ptr(),
        context_lens: step.inputs.context_lens()?.ptr(),
        block_start: step.inputs.block_start(group)?.ptr(),
        block_tables: step.inputs.block_tables()?.ptr(),
        sinks: sinks.map(|sinks| sinks.read(layout.num_heads)).transpose()?.into(),
        biases: biases.map(|biases| biases.read(biases.elements())).transpose()?.into(),
        num_heads,
        num_kv_heads,
        row_cols: count(layout.cols())?,
        head_dim: count(layout.head_dim)?,
        value_dim,
        block_size: count(kv.spec.block_size)?,
        splits,
        split_tokens,
        num_items: decode_items,
        window,
        ahead,
        format_out: format,
        scale: scoring.scale,
        softcap: scoring.softcap.unwrap_or(0.0),
        bias_reach: count(biases.map_or(0, |biases| bias_reach(biases, layout.num_heads)))?,
        alibi,
        alibi_heads: count(slopes.map_or(0, |slopes| slopes.whole))?,
    };
    if decode_items > 0 {
        // SAFETY: see `ops`; the block tables were checked against the cache.
        unsafe { launcher.launch(decode, variant, grid, &args)? };
    }
    // The tiles of images whose tokens attend to each other follow those of text.
    let mut items = step.inputs.prefill_items()?;
    let ahead_in_images = if kv.spec.kind.sees_whole_images(shape.sight) { MOST_AHEAD } else { ahead };
    for (tiles, ahead) in [(tiles[0], ahead), (tiles[1], ahead_in_images)] {
        if tiles == 0 {
            continue;
        }
        (args.items, args.ahead) = (items.ptr(), ahead);
        // A token sees at most the keys of its window or chunk.
        let most = match kv.spec.kind {
            GroupKind::Chunked { size } => size,
            _ => window,
        };
        let context = shape.prefill_context.min(most.checked_sub(1).unwrap_or(u32::MAX));
        let heads = [num_heads, if is_latent { LATENT_VALUES } else { head_size(layout.head_dim)? }];
        let block = launcher.function(prefill, variant)?.block();
        args.splits = launcher.tuning().attention_prefill_splits(tiles, heads, context, multiprocessors, block);
        // SAFETY: as above.
        unsafe { launcher.launch(prefill, variant, [num_heads, tiles, args.splits], &args)? };
        items = items.after(8 * u64::from(tiles))?;
    }
    Ok(())
}

pub(super) fn copy_blocks(step: &mut GpuStep<'_>, args: CopyBlocks<'_, GpuBackend>) -> Result<()> {
    let CopyBlocks { group, kv } = args;
    let (pairs, num_pairs) = step.inputs.copies(group)?;
    if num_pairs == 0 {
        return Ok(());
    }
    // Half of a block's bytes are K, and half are V. Latent rows are both, and are copied to the same place twice.
    let bytes = kv.spec.block_bytes().unwrap_or(0) / if kv.spec.latent.is_some() { 1 } else { 2 };
    let block_bytes = u32::try_from(bytes).map_err(|_| Error::internal(format!("blocks of {bytes} bytes")))?;
    let num_pairs = count(num_pairs)?;
    let (k_cache, v_cache, pairs) = (kv.k.ptr(), kv.v.ptr(), pairs.ptr());
    let args = CopyBlocksArgs { k_cache, v_cache, pairs, num_pairs, block_bytes };
    let launcher = step.compute.launcher();
    // SAFETY: see `ops`; the blocks were checked.
    unsafe { launcher.launch(COPY_BLOCKS, ONCE, [block_bytes.div_ceil(4096), num_pairs, 1], &args) }
}
