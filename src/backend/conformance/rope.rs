//! q/k norm and RoPE, both kinds, whole and partial.

use super::{Piece, Random, Tally, batch_of, fill, kv_layer, matrix, vector};
use crate::Result;
use crate::backend::{
    Backend, KvLayerSpec, Loader, Ops, QkNorms, QkvLayout, RopeAndStore, RopeAngles, RopeKind, RopeSpec, Rotation,
};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;

struct Case {
    kind: RopeKind,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    num_pairs: usize,
    norms: bool,
    tokens: usize,
}

const fn case(kind: RopeKind, heads: [usize; 2], head: [usize; 2], norms: bool, tokens: usize) -> Case {
    let ([num_heads, num_kv_heads], [head_dim, num_pairs]) = (heads, head);
    Case { kind, num_heads, num_kv_heads, head_dim, num_pairs, norms, tokens }
}

const CASES: [Case; 9] = [
    case(RopeKind::Norm, [1, 1], [2, 1], false, 1),
    case(RopeKind::Neox, [1, 1], [2, 1], false, 3),
    case(RopeKind::Norm, [3, 1], [7, 3], true, 5),
    case(RopeKind::Neox, [3, 1], [7, 2], true, 5),
    case(RopeKind::Norm, [4, 2], [80, 40], false, 17),
    case(RopeKind::Neox, [7, 1], [80, 20], true, 17),
    case(RopeKind::Norm, [9, 3], [64, 32], false, 33),
    case(RopeKind::Neox, [14, 2], [64, 32], true, 70),
    case(RopeKind::Neox, [2, 2], [5, 0], true, 4),
];

/// Of q/k norm.
pub(super) const EPS: f32 = 1e-6;

pub(super) fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("RoPE");
    for (seed, case) in tally.part(&CASES) {
        check_case(loader(case.tokens)?, case, seed as u64, tally)?;
    }
    Ok(())
}

fn check_case<L: Loader>(mut loader: L, case: &Case, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let &Case { kind, num_heads, num_kv_heads, head_dim, num_pairs, norms, tokens } = case;
    let layout = QkvLayout { num_heads, num_kv_heads, head_dim };
    let what = format!("{kind:?} RoPE of {layout:?}, {num_pairs} pairs, norms {norms}");
    tally.begin(&what)?;
    let cols = layout.cols();
    let (x, q_w, k_w) = (random.values(tokens * cols), random.values(head_dim), random.values(head_dim));
    let rope = RopeSpec { kind, inv_freq: random.values(num_pairs), magnitude: 1.5 };

    let table = matrix(&mut loader, &x, cols)?;
    let weights = if norms { Some((vector(&mut loader, &q_w)?, vector(&mut loader, &k_w)?)) } else { None };
    let mut qkv = loader.alloc_buffer(tokens, cols)?;
    let mut angles = loader.alloc_buffer(tokens, 2 * num_pairs)?;
    let num_blocks = tokens.div_ceil(16);
    let dtype = KvCacheDtype::F16;
    let spec = KvLayerSpec { kind: GroupKind::Full, num_blocks, block_size: 16, num_kv_heads, head_dim, dtype };
    let mut kv = kv_layer(&mut loader, spec)?;
    let uploaded = loader.upload_rope(&rope)?;
    let mut backend = loader.finish()?;

    let piece = Piece { first_row: 0, blocks: (0..num_blocks as u32).collect(), cached: 0, new: tokens };
    let batch = batch_of(&[piece], 16, GroupKind::Full);
    fill(&mut backend, &table, tokens, &mut qkv)?;
    backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.rope_angles(RopeAngles { rope: &uploaded, out: &mut angles })?;
        let norms = weights.as_ref().map(|(q, k)| QkNorms { q, k, eps: EPS });
        let rotation = Rotation { norms, rope: &uploaded, angles: &angles };
        step.rope_and_store_kv(RopeAndStore { qkv: &mut qkv, layout, rotation, group: 0, kv: &mut kv })
    })?;

    let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let norms = norms.then_some([q_w, k_w]);
    for (token, row) in expected.chunks_mut(cols).enumerate() {
        rotate(row, layout, &rope, norms.as_ref(), token);
    }
    tally.close(&what, backend.to_host(&qkv, tokens, cols)?, &expected, 1e-6, 1e-6);
    Ok(())
}

/// q and k of a row, normed with the weights of `norms` (for q, for k) and rotated.
pub(super) fn rotate(
    row: &mut [f64],
    layout: QkvLayout,
    rope: &RopeSpec,
    norms: Option<&[Vec<f32>; 2]>,
    position: usize,
) {
    let num_pairs = rope.inv_freq.len();
    let heads = row.chunks_mut(layout.head_dim).take(layout.num_heads + layout.num_kv_heads);
    for (index, head) in heads.enumerate() {
        if let Some([q_weight, k_weight]) = norms {
            let weight = if index < layout.num_heads { q_weight } else { k_weight };
            let mean = head.iter().map(|x| x * x).sum::<f64>() / head.len() as f64;
            let rms = (mean + f64::from(EPS)).sqrt();
            head.iter_mut().zip(weight).for_each(|(x, &w)| *x = *x / rms * f64::from(w));
        }
        for (pair, &inv_freq) in rope.inv_freq.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * inv_freq).sin_cos();
            let (i, j) = match rope.kind {
                RopeKind::Norm => (2 * pair, 2 * pair + 1),
                RopeKind::Neox => (pair, pair + num_pairs),
            };
            let (a, b, magnitude) = (head[i], head[j], f64::from(rope.magnitude));
            head[i] = magnitude * (a * cos - b * sin);
            head[j] = magnitude * (a * sin + b * cos);
        }
    }
}
