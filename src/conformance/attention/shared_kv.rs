//! A layer whose rows hold only q and attend to the keys and values of another layer.

use super::{Case, case, expected};
use crate::Result;
use crate::backend::{
    Backend, Embed, Fusions, Loader, Ops, QkvLayout, RopeAndStore, RopeAngles, RopeAttention, RopeKind, RopeSpec,
    Rotation,
};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use crate::rope::{HostNorms, HostRotation, Norms};
use crate::{Accuracy, Piece, Random, Tally, batch_of, kv_layer, matrix, no_rope};

/// Prompts, chunks and single tokens together; then single tokens only.
const MIX: &[(usize, usize)] = &[(0, 33), (40, 1), (17, 20), (0, 1)];
const SINGLE: &[(usize, usize)] = &[(40, 1), (3, 1), (130, 1), (0, 1)];
/// Absolute error over an f16 cache: q is rotated in f32 on the device, in f64 here.
const ROTATED: f64 = 2e-5;

const CASES: [Case; 7] = [
    case([3, 1], 7, 16, MIX),
    case([4, 2], 80, 16, SINGLE),
    case([8, 1], 64, 32, MIX),
    Case { window: Some(20), ..case([4, 2], 33, 16, MIX) },
    Case { window: Some(16), ..case([2, 1], 32, 16, SINGLE) },
    Case { dtype: KvCacheDtype::F32, ..case([9, 3], 64, 16, MIX) },
    Case { dtype: KvCacheDtype::F32, window: Some(20), ..case([4, 1], 48, 16, SINGLE) },
];

pub(crate) fn check<L: Loader>(
    loader: impl Fn(usize) -> Result<L>,
    accuracy: Accuracy,
    tally: &mut Tally<'_>,
) -> Result<()> {
    tally.group("attention to another layer's keys and values");
    for (seed, case) in tally.part(&CASES) {
        check_case(loader(256)?, accuracy, case, seed as u64, tally)?;
    }
    Ok(())
}

fn check_case<L: Loader>(
    mut loader: L,
    accuracy: Accuracy,
    case: &Case,
    seed: u64,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let layout = case.layout();
    let queries = QkvLayout { has_kv: false, ..layout };
    let what = format!("attention of {queries:?}, window {:?} {:?}", case.window, case.dtype);
    tally.begin(&what)?;
    let mut random = Random(seed);
    let rows = case.rows(&mut random);
    let (pieces, spec) = case.pieces(&mut random);
    let tokens = rows.len() / layout.cols();
    let q = random.values(tokens * queries.cols());
    let num_pairs = layout.head_dim / 4;
    let rotation = HostRotation {
        rope: RopeSpec { kind: RopeKind::Neox, inv_freq: random.values(num_pairs), magnitude: 1.0 },
        norms: HostNorms::random(Norms::Heads, queries, &mut random),
        temperature: None,
    };

    // Rows with the keys and values, as if the layer had stored them.
    let mut together = rows.clone();
    let mut rotated = q.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let mut places = together.chunks_mut(layout.cols()).zip(rotated.chunks_mut(queries.cols()));
    for piece in &pieces {
        for (position, (row, q)) in places.by_ref().take(piece.cached + piece.new).enumerate() {
            rotation.apply(q, queries, position);
            row.iter_mut().zip(q).for_each(|(x, q)| *x = *q as f32);
        }
    }

    let (table, q_table) = (matrix(&mut loader, &rows, layout.cols())?, matrix(&mut loader, &q, queries.cols())?);
    let (plain, rotation) = (loader.upload_rope(&no_rope())?, rotation.upload(&mut loader)?);
    let mut qkv = loader.alloc_buffer(tokens, layout.cols())?;
    let mut q = loader.alloc_buffer(tokens, queries.cols())?;
    let mut no_angles = loader.alloc_buffer(tokens, 2)?;
    let mut angles = loader.alloc_buffer(tokens, 2 * num_pairs.max(1))?;
    let mut out = loader.alloc_buffer(tokens, layout.out_cols())?;
    let mut kv = kv_layer(&mut loader, spec)?;
    let mut backend = loader.finish()?;
    let mut run = |pieces: &[Piece], kind| {
        let batch = batch_of(pieces, spec.block_size, kind);
        backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
            step.rope_angles(RopeAngles { rope: &plain, out: &mut no_angles })?;
            step.rope_angles(RopeAngles { rope: &rotation.rope, out: &mut angles })?;
            step.embed(Embed { table: &table, scale: 1.0, out: &mut qkv })?;
            let rotated = Rotation { norms: None, rope: &plain, angles: &no_angles, temperature: None };
            step.rope_and_store_kv(RopeAndStore { qkv: &mut qkv, layout, rotation: rotated, group: 0, kv: &mut kv })?;
            step.embed(Embed { table: &q_table, scale: 1.0, out: &mut q })?;
            step.rope_attention(RopeAttention {
                qkv: &mut q,
                layout: queries,
                rotation: rotation.of(&angles, queries),
                scoring: case.scoring(),
                sinks: None,
                biases: None,
                group: 0,
                kv: &mut kv,
                out: &mut out,
            })
        })?;
        Ok::<_, crate::Error>(backend.to_host(&out, batch.num_tokens(), layout.out_cols())?.to_vec())
    };
    let before: Vec<_> = pieces.iter().map(|piece| Piece { cached: 0, new: piece.cached, ..piece.clone() }).collect();
    let before: Vec<_> = before.into_iter().filter(|piece| piece.new > 0).collect();
    run(&before, GroupKind::Full)?;
    let got = run(&pieces, spec.kind)?;
    let absolute = case.tolerance(accuracy).max(ROTATED);
    tally.close(&what, &got, &expected(case, &pieces, &together), 1e-5, absolute);
    Ok(())
}
