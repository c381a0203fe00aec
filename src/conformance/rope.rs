//! q/k norms, both kinds of RoPE on all or some elements, and the temperature of queries.

use super::{Piece, Random, Tally, batch_of, fill, kv_layer, matrix, vector};
use crate::Result;
use crate::backend::{
    Backend, KvLayerSpec, Loader, Ops, QkNorms, QkvLayout, RopeAndStore, RopeAngles, RopeKind, RopeSpec, Rotation,
    Temperature,
};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;

struct Case {
    kind: RopeKind,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    value_dim: usize,
    num_pairs: usize,
    norms: Norms,
    tokens: usize,
    temperature: Option<Temperature>,
    has_kv: bool,
}

/// The norms of q and k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    No,
    /// A norm of each head: `Heads` before RoPE, `HeadsLast` after it.
    Heads,
    HeadsLast,
    /// `Heads`, and each head of v is divided by its root mean square.
    HeadsAndV,
    /// One norm over all heads of a row together.
    Rows,
}

const fn case(kind: RopeKind, heads: [usize; 2], head: [usize; 2], norms: Norms, tokens: usize) -> Case {
    let ([num_heads, num_kv_heads], [head_dim, num_pairs]) = (heads, head);
    let (value_dim, temperature, has_kv) = (head_dim, None, true);
    Case { kind, num_heads, num_kv_heads, head_dim, value_dim, num_pairs, norms, tokens, temperature, has_kv }
}

/// A context of a few tokens.
pub(super) const TEMPERATURE: Option<Temperature> = Some(Temperature { scale: 0.1, context: 16, offset: 1 });

const CASES: [Case; 24] = [
    case(RopeKind::Norm, [1, 1], [2, 1], Norms::No, 1),
    case(RopeKind::Neox, [1, 1], [2, 1], Norms::No, 3),
    case(RopeKind::Norm, [3, 1], [7, 3], Norms::Heads, 5),
    case(RopeKind::Neox, [3, 1], [7, 2], Norms::Heads, 5),
    case(RopeKind::Norm, [4, 2], [80, 40], Norms::No, 17),
    case(RopeKind::Neox, [7, 1], [80, 20], Norms::Heads, 17),
    case(RopeKind::Norm, [9, 3], [64, 32], Norms::No, 33),
    case(RopeKind::Neox, [14, 2], [64, 32], Norms::Heads, 70),
    case(RopeKind::Neox, [2, 2], [5, 0], Norms::Heads, 4),
    case(RopeKind::Neox, [3, 1], [7, 2], Norms::HeadsLast, 5),
    case(RopeKind::Norm, [6, 2], [33, 16], Norms::Rows, 18),
    Case { temperature: TEMPERATURE, ..case(RopeKind::Norm, [3, 1], [16, 8], Norms::No, 40) },
    Case { temperature: TEMPERATURE, ..case(RopeKind::Neox, [4, 4], [64, 16], Norms::HeadsLast, 33) },
    Case { temperature: TEMPERATURE, ..case(RopeKind::Neox, [2, 1], [40, 0], Norms::Rows, 33) },
    case(RopeKind::Neox, [2, 1], [512, 256], Norms::HeadsAndV, 3),
    case(RopeKind::Norm, [1, 1], [300, 130], Norms::Heads, 2),
    case(RopeKind::Neox, [1, 1], [259, 64], Norms::HeadsLast, 2),
    case(RopeKind::Neox, [3, 1], [7, 2], Norms::HeadsAndV, 5),
    case(RopeKind::Neox, [4, 2], [64, 32], Norms::HeadsAndV, 33),
    Case { value_dim: 8, ..case(RopeKind::Neox, [4, 2], [32, 16], Norms::HeadsAndV, 5) },
    Case { value_dim: 128, ..case(RopeKind::Norm, [4, 2], [192, 32], Norms::Heads, 18) },
    Case { has_kv: false, ..case(RopeKind::Neox, [3, 1], [7, 2], Norms::Heads, 5) },
    Case { has_kv: false, ..case(RopeKind::Norm, [9, 3], [64, 32], Norms::No, 33) },
    Case { has_kv: false, temperature: TEMPERATURE, ..case(RopeKind::Norm, [6, 2], [33, 16], Norms::Rows, 18) },
];

/// Epsilon of the norms of q and k.
const EPS: f32 = 1e-6;

pub(super) fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("RoPE");
    for (seed, case) in tally.part(&CASES) {
        check_case(loader(case.tokens)?, case, seed as u64, tally)?;
    }
    Ok(())
}

fn check_case<L: Loader>(mut loader: L, case: &Case, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let &Case { kind, num_heads, num_kv_heads, head_dim, value_dim, num_pairs, norms, tokens, .. } = case;
    let &Case { temperature, has_kv, .. } = case;
    let layout = QkvLayout { num_heads, num_kv_heads, head_dim, value_dim, gated: false, has_kv };
    let what = format!("{kind:?} RoPE of {layout:?}, {num_pairs} pairs, norms {norms:?}, {temperature:?}");
    tally.begin(&what)?;
    let cols = layout.cols();
    let x = random.values(tokens * cols);
    let norms = HostNorms::random(norms, layout, &mut random);
    let rope = RopeSpec { kind, inv_freq: random.values(num_pairs), magnitude: 1.5 };
    let host = HostRotation { rope, norms, temperature };

    let table = matrix(&mut loader, &x, cols)?;
    let rotation = host.upload(&mut loader)?;
    let mut qkv = loader.alloc_buffer(tokens, cols)?;
    let mut angles = loader.alloc_buffer(tokens, 2 * num_pairs)?;
    let num_blocks = tokens.div_ceil(16);
    let dtype = KvCacheDtype::F16;
    let spec = KvLayerSpec {
        kind: GroupKind::Full,
        skips_first: false,
        num_blocks,
        block_size: 16,
        num_kv_heads,
        head_dim,
        latent: None,
        dtype,
    };
    let mut kv = kv_layer(&mut loader, spec)?;
    let mut backend = loader.finish()?;

    let piece = Piece { first_row: 0, blocks: (0..num_blocks as u32).collect(), cached: 0, new: tokens };
    let batch = batch_of(&[piece], 16, GroupKind::Full);
    fill(&mut backend, &table, tokens, &mut qkv)?;
    backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
        step.rope_angles(RopeAngles { rope: &rotation.rope, out: &mut angles })?;
        let rotation = rotation.of(&angles, layout);
        step.rope_and_store_kv(RopeAndStore { qkv: &mut qkv, layout, rotation, group: 0, kv: &mut kv })
    })?;

    let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    for (token, row) in expected.chunks_mut(cols).enumerate() {
        host.apply(row, layout, token);
    }
    tally.close(&what, backend.to_host(&qkv, tokens, cols)?, &expected, 1e-6, 1e-6);
    Ok(())
}

/// The weights of the norms of q and k.
pub(crate) struct HostNorms {
    weights: [Vec<f32>; 2],
    after_rope: bool,
    v: bool,
}

impl HostNorms {
    pub(super) fn random(norms: Norms, layout: QkvLayout, random: &mut Random) -> Option<Self> {
        let lens = match norms {
            Norms::No => return None,
            Norms::Heads | Norms::HeadsLast | Norms::HeadsAndV => [layout.head_dim; 2],
            Norms::Rows => [layout.q_cols(), layout.k_cols()],
        };
        let weights = lens.map(|len| random.values(len));
        Some(Self { weights, after_rope: norms == Norms::HeadsLast, v: norms == Norms::HeadsAndV })
    }
}

/// A `Rotation` with its weights on the host.
pub struct HostRotation {
    pub(super) rope: RopeSpec,
    pub(super) norms: Option<HostNorms>,
    pub(super) temperature: Option<Temperature>,
}

impl From<RopeSpec> for HostRotation {
    fn from(rope: RopeSpec) -> Self {
        Self { rope, norms: None, temperature: None }
    }
}

impl HostRotation {
    pub(super) fn upload<L: Loader>(&self, loader: &mut L) -> Result<UploadedRotation<L::Backend>> {
        let norms = match &self.norms {
            &Some(HostNorms { weights: [ref q, ref k], after_rope, v }) => {
                Some(UploadedNorms { q: vector(loader, q)?, k: vector(loader, k)?, after_rope, v })
            }
            None => None,
        };
        Ok(UploadedRotation { rope: loader.upload_rope(&self.rope)?, norms, temperature: self.temperature })
    }

    /// Rotates q and k of a row in place, and norms v if the case does.
    pub(super) fn apply(&self, row: &mut [f64], layout: QkvLayout, position: usize) {
        let row = &mut row[layout.gate_cols()..];
        let (q, rest) = row.split_at_mut(layout.q_cols());
        let (k, v) = rest.split_at_mut(if layout.has_kv { layout.k_cols() } else { 0 });
        if self.norms.as_ref().is_some_and(|norms| norms.v) {
            v.chunks_mut(layout.value_dim).for_each(|head| normalize(head, &vec![1.0; layout.value_dim]));
        }
        for (part, heads) in [q, k].into_iter().enumerate() {
            let weights = self.norms.as_ref().map(|norms| (&norms.weights[part], norms.after_rope));
            let norm = |heads: &mut [f64], last: bool| match weights {
                Some((weights, after_rope)) if after_rope == last => {
                    heads.chunks_mut(weights.len()).for_each(|part| normalize(part, weights));
                }
                _ => {}
            };
            norm(heads, false);
            heads.chunks_mut(layout.head_dim).for_each(|head| rotate(head, &self.rope, position));
            norm(heads, true);
        }
        if let Some(temperature) = self.temperature {
            let contexts = (position + temperature.offset as usize) / temperature.context as usize;
            let factor = 1.0 + f64::from(temperature.scale) * (1.0 + contexts as f64).ln();
            row[..layout.q_cols()].iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// A `HostRotation` uploaded to a device.
pub(crate) struct UploadedRotation<B: Backend> {
    pub(super) rope: B::Rope,
    norms: Option<UploadedNorms<B>>,
    temperature: Option<Temperature>,
}

struct UploadedNorms<B: Backend> {
    q: B::Vector,
    k: B::Vector,
    after_rope: bool,
    v: bool,
}

impl<B: Backend> UploadedRotation<B> {
    pub(super) fn of<'a>(&'a self, angles: &'a B::Buffer, layout: QkvLayout) -> Rotation<'a, B> {
        let norms = self.norms.as_ref().map(|&UploadedNorms { ref q, ref k, after_rope, v }| QkNorms {
            q,
            k: layout.has_kv.then_some(k),
            v,
            eps: EPS,
            after_rope,
        });
        Rotation { norms, rope: &self.rope, angles, temperature: self.temperature }
    }
}

fn normalize(x: &mut [f64], weights: &[f32]) {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let rms = (mean + f64::from(EPS)).sqrt();
    x.iter_mut().zip(weights).for_each(|(x, &w)| *x = *x / rms * f64::from(w));
}

fn rotate(head: &mut [f64], rope: &RopeSpec, position: usize) {
    let num_pairs = rope.inv_freq.len();
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
