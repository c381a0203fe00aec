//! Contradictory arguments of the ops for latent attention.

use super::{LAYOUT, SCORING, TOKENS, judge, spec};
use crate::Result;
use crate::backend::{
    Attention, Backend, HeadProducts, KvLayerSpec, LatentShape, Loader, Ops, QkvLayout, RopeAndStore,
    RopeAndStoreLatent, RopeKind, RopeSpec, Rotation, Scoring, Temperature,
};
use crate::batch::{Batch, GroupTables};
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::{Random, Tally, bytes_of, kv_layer, rows_batch, vector};

const SHAPE: LatentShape = LatentShape { num_heads: 2, plain_dim: 128, rope_dim: 128, rank: 128, value_dim: 128 };

pub(super) fn check<L: Loader>(mut loader: L, tally: &mut Tally<'_>) -> Result<()> {
    tally.begin("arguments of latent attention that contradict each other")?;
    let mut random = Random(2);
    let latent_spec =
        KvLayerSpec { num_kv_heads: 1, head_dim: SHAPE.row_dim(), latent: Some(SHAPE.rank), ..spec(LAYOUT) };
    let mut kv = kv_layer(&mut loader, latent_spec)?;
    let mut plain_kv = kv_layer(&mut loader, KvLayerSpec { latent: None, ..latent_spec })?;
    let norm = vector(&mut loader, &random.values(SHAPE.rank))?;
    let biases = vector(&mut loader, &random.values(SHAPE.queries().num_heads * 5))?;
    let short_norm = vector(&mut loader, &random.values(SHAPE.rank / 2))?;
    let pairs = |kind, count| RopeSpec { kind, inv_freq: vec![1.0; count], magnitude: 1.0 };
    let rope = loader.upload_rope(&pairs(RopeKind::Norm, 64))?;
    let few_pairs = loader.upload_rope(&pairs(RopeKind::Norm, 32))?;
    let data = bytes_of(&random.values(2 * 128 * 128));
    let of_heads =
        TensorView { name: "heads", ggml_type: GgmlType::F32, rows: 2 * 128, cols: 128, data: &data, scales: &[] };
    let matrices = &loader.upload_heads(of_heads, 2, &mut |_| Ok(()))?;
    let (q, latent, angles) = (
        &loader.alloc_buffer(TOKENS, SHAPE.q_cols())?,
        &loader.alloc_buffer(TOKENS, SHAPE.row_dim())?,
        &loader.alloc_buffer(TOKENS, SHAPE.rope_dim)?,
    );
    let mut out = loader.alloc_buffer(TOKENS, SHAPE.queries().q_cols())?;
    let mut found = loader.alloc_buffer(TOKENS, SHAPE.found_cols())?;
    let mut wide = loader.alloc_buffer(TOKENS, 3 * SHAPE.row_dim())?;
    let (small, mut small_out) = (&loader.alloc_buffer(1, 1)?, loader.alloc_buffer(1, 1)?);
    let mut backend = loader.finish()?;
    let blocks = TOKENS.div_ceil(16) as u32;
    let slots = GroupTables {
        slot_mapping: (0..TOKENS as u32).collect(),
        block_tables: (0..blocks).collect(),
        cu_blocks: vec![0, blocks],
    };
    let batch = Batch { groups: vec![slots], ..rows_batch((0..TOKENS as u32).collect()) };

    // Runs each op with valid arguments, then with one invalid argument at a time.
    macro_rules! refused {
        ($what:literal, $step:ident, $right:expr, $($wrong:expr),+ $(,)?) => {{
            backend.step(&batch, &mut |$step: &mut <L::Backend as Backend>::Step<'_>| $right)?;
            $(
                let outcome = backend.step(&batch, &mut |$step: &mut <L::Backend as Backend>::Step<'_>| $wrong);
                judge($what, outcome, stringify!($wrong), tally);
            )+
        }};
    }
    macro_rules! products {
        ($($field:ident: $value:expr),*) => {{
            #[allow(unused_mut)] // some change nothing
            let mut args = HeadProducts { x: q, x_head: 256, matrices, rows: TOKENS, out: &mut out, out_head: 256 };
            $(args.$field = $value;)*
            args
        }};
    }
    refused!(
        "head_products",
        step,
        step.head_products(products!()),
        step.head_products(products!(x: small)),
        step.head_products(products!(x_head: 127)),
        step.head_products(products!(out_head: 127)),
        step.head_products(products!(out: &mut small_out)),
    );
    macro_rules! rows {
        ($($field:ident: $value:expr),*) => {{
            #[allow(unused_mut)] // some change nothing
            let mut args = RopeAndStoreLatent {
                q,
                queries: &mut out,
                latent,
                shape: SHAPE,
                norm: &norm,
                eps: 1e-5,
                rope: &rope,
                angles,
                temperature: None,
                group: 0,
                kv: &mut kv,
            };
            $(args.$field = $value;)*
            args
        }};
    }
    refused!(
        "rope_and_store_latent",
        step,
        step.rope_and_store_latent(rows!()),
        step.rope_and_store_latent(rows!(q: small)),
        step.rope_and_store_latent(rows!(queries: &mut small_out)),
        step.rope_and_store_latent(rows!(latent: small)),
        step.rope_and_store_latent(rows!(norm: &short_norm)),
        step.rope_and_store_latent(rows!(rope: &few_pairs)),
        step.rope_and_store_latent(rows!(angles: small)),
        step.rope_and_store_latent(rows!(kv: &mut plain_kv)),
        step.rope_and_store_latent(rows!(shape: LatentShape { rank: 64, ..SHAPE })),
        step.rope_and_store_latent(rows!(temperature: Some(Temperature { scale: 1.0, context: 0, offset: 0 }))),
        step.rope_and_store_latent(rows!(group: 1)),
    );
    let layout = SHAPE.queries();
    macro_rules! attention {
        ($($field:ident: $value:expr),*) => {{
            #[allow(unused_mut)] // some change nothing
            let mut args = Attention {
                qkv: &out,
                layout,
                scoring: SCORING,
                sinks: None,
                biases: None,
                group: 0,
                kv: &kv,
                out: &mut found,
            };
            $(args.$field = $value;)*
            args
        }};
    }
    refused!(
        "latent attention",
        step,
        step.attention(attention!()),
        step.attention(attention!(qkv: small)),
        step.attention(attention!(layout: QkvLayout { gated: true, ..layout })),
        step.attention(attention!(layout: QkvLayout { has_kv: true, ..layout })),
        step.attention(attention!(layout: QkvLayout { head_dim: 128, value_dim: 128, ..layout })),
        step.attention(attention!(scoring: Scoring { alibi: Some(8.0), ..SCORING })),
        step.attention(attention!(biases: Some(&biases))),
        step.attention(attention!(out: &mut small_out)),
        step.attention(attention!(group: 1)),
    );
    // A latent cache has no place for separate keys and values.
    let layout = QkvLayout { num_heads: 1, has_kv: true, value_dim: layout.head_dim, ..layout };
    let rotation = Rotation { norms: None, rope: &rope, angles, temperature: None };
    refused!(
        "rope_and_store_kv",
        step,
        step.rope_and_store_kv(RopeAndStore { qkv: &mut wide, layout, rotation, group: 0, kv: &mut plain_kv }),
        step.rope_and_store_kv(RopeAndStore { qkv: &mut wide, layout, rotation, group: 0, kv: &mut kv }),
    );
    Ok(())
}
