//! The rows of latent attention: products of heads, and the store of latent rows.

use crate::GpuBackend;
use crate::Result;
use crate::backend::{HeadProducts, RopeAndStoreLatent, RopeKind, Temperature};
use crate::buffer::{HeadMatrices, count};
use crate::gpu_backend::gpu_step::GpuStep;
use crate::launch::args::{Format, HEAD_PRODUCTS_TILE, HeadProductsArgs, LatentStoreArgs, ROTATION_NEOX};
use crate::launch::catalog::{HEAD_PRODUCTS, LATENT_STORE, ONCE, Subject};
use crate::step::checks::Check;

pub(super) fn head_products(step: &mut GpuStep<'_>, args: HeadProducts<'_, GpuBackend>) -> Result<()> {
    let HeadProducts { x, x_head, matrices, rows, out, out_head } = args;
    let &HeadMatrices { heads, rows: out_cols, cols, .. } = matrices;
    // Complete rows go through the next layer's matrix; others are completed first.
    let format = match out_head == out_cols {
        true => step.compute.activation_format(step.compute.common(), rows),
        false => Format::F32,
    };
    let args = HeadProductsArgs {
        weights: matrices.weights.slice().ptr(),
        x: x.read_f32("the heads' input", rows, heads * x_head)?.ptr(),
        out: out.write("the heads' output", rows, heads * out_head, format)?.ptr(),
        rows: count(rows)?,
        heads: count(heads)?,
        out_cols: count(out_cols)?,
        cols: count(cols)?,
        x_head: count(x_head)?,
        out_head: count(out_head)?,
        format_out: format,
    };
    if rows == 0 {
        return Ok(());
    }
    let grid = [args.out_cols.div_ceil(HEAD_PRODUCTS_TILE), args.rows.div_ceil(HEAD_PRODUCTS_TILE), args.heads];
    // SAFETY: see `ops`.
    unsafe { step.compute.launcher().launch(HEAD_PRODUCTS, ONCE, grid, &args) }
}

pub(super) fn rope_and_store_latent(step: &mut GpuStep<'_>, args: RopeAndStoreLatent<'_, GpuBackend>) -> Result<()> {
    let RopeAndStoreLatent { q, queries, latent, shape, norm, eps, rope, angles, temperature, group, kv } = args;
    let Temperature { scale, context, offset } = temperature.unwrap_or(Temperature::NONE);
    let rows = step.tokens;
    step.inputs.check(step.batch, Check::Slots { group, spec: kv.spec })?;
    let args = LatentStoreArgs {
        q: q.read_f32("q", rows, shape.q_cols())?.ptr(),
        queries: queries.read_f32("the queries", rows, shape.queries().q_cols())?.ptr(),
        latent: latent.read_f32("the latents", rows, shape.row_dim())?.ptr(),
        norm: norm.read(shape.rank)?.ptr(),
        angles: angles.read_f32("the buffer of angles", rows, shape.rope_dim)?.ptr(),
        slot_mapping: step.inputs.slots(group)?.ptr(),
        positions: step.inputs.positions()?.ptr(),
        cache: kv.k.slice().ptr(),
        num_heads: count(shape.num_heads)?,
        plain_dim: count(shape.plain_dim)?,
        rope_dim: count(shape.rope_dim)?,
        rank: count(shape.rank)?,
        flags: if rope.kind == RopeKind::Neox { ROTATION_NEOX } else { 0 },
        eps,
        temperature: scale,
        temperature_context: context,
        temperature_offset: offset,
    };
    if rows == 0 {
        return Ok(());
    }
    let launcher = step.compute.launcher();
    // SAFETY: see `ops`; the slots were checked against the cache.
    unsafe { launcher.launch(LATENT_STORE, Subject::Cache(kv.spec.dtype), [count(rows)?, 1, 1], &args) }
}
