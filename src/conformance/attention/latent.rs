//! Multi-head latent attention: matrices of heads, rows of the cache, and attention over them. The f64 reference uses
//! the plain form, in which every head has its own keys and values.

use half::f16;

use crate::Result;
use crate::backend::{
    Attention, Backend, CopyBlocks, Embed, HeadProducts, KvLayerSpec, LatentShape, Loader, Ops, RopeAndStoreLatent,
    RopeAngles, RopeKind, RopeSpec, Scoring, Temperature,
};
use crate::batch::{Batch, BlockCopy, GroupKind};
use crate::config::KvCacheDtype;
use crate::linear::Weights;
use crate::quant::GgmlType;
use crate::{Accuracy, BufferOf, Piece, Random, Tally, batch_of, kv_layer, matrix, vector};

const EPS: f32 = 1e-5;

/// Sequences are `(tokens in the cache, tokens of the step)`.
struct Case {
    shape: LatentShape,
    block_size: usize,
    dtype: KvCacheDtype,
    /// Type of the matrices of heads.
    weights: GgmlType,
    temperature: Option<Temperature>,
    seqs: &'static [(usize, usize)],
}

/// Returns a case from the number of heads and the sizes: a head's parts without and with RoPE, the latent, and a
/// head's values.
const fn case([num_heads, plain_dim, rope_dim, rank, value_dim]: [usize; 5], seqs: &'static [(usize, usize)]) -> Case {
    let shape = LatentShape { num_heads, plain_dim, rope_dim, rank, value_dim };
    let (dtype, weights) = (KvCacheDtype::F16, GgmlType::F16);
    Case { shape, block_size: 16, dtype, weights, temperature: None, seqs }
}

const MIX: &[(usize, usize)] = &[(0, 1), (16, 1), (0, 17), (127, 3), (129, 1), (5, 40)];
const SINGLE: &[(usize, usize)] = &[(40, 1), (3, 1), (300, 1), (0, 1)];
const FAR: Option<Temperature> = Some(Temperature { scale: 0.5, context: 12, offset: 5 });

/// First sizes that are a multiple of nothing, then those of the golden models, of DeepSeek V3 and of GLM-4.7-Flash.
const CASES: [Case; 17] = [
    case([1, 1, 2, 1, 1], &[(0, 5), (20, 1)]),
    Case { block_size: 32, ..case([3, 5, 4, 7, 3], MIX) },
    case([4, 32, 16, 32, 32], MIX),
    case([2, 16, 16, 32, 16], SINGLE),
    Case { temperature: FAR, ..case([17, 24, 8, 40, 20], MIX) },
    Case { dtype: KvCacheDtype::F32, weights: GgmlType::F32, ..case([3, 5, 6, 9, 3], MIX) },
    Case { dtype: KvCacheDtype::F32, ..case([20, 24, 8, 64, 16], SINGLE) },
    Case { dtype: KvCacheDtype::F32, temperature: FAR, ..case([6, 16, 16, 32, 16], MIX) },
    case([16, 128, 64, 512, 128], &[(0, 5), (40, 1), (20, 2)]),
    case([5, 192, 64, 512, 256], &[(70, 1), (16, 1)]),
    Case { dtype: KvCacheDtype::F32, ..case([3, 64, 64, 512, 48], &[(33, 1), (0, 5)]) },
    Case { weights: GgmlType::Q8_0, ..case([9, 64, 16, 96, 33], MIX) },
    Case { weights: GgmlType::BF16, ..case([2, 80, 32, 260, 70], &[(0, 20), (130, 1), (0, 66)]) },
    Case { dtype: KvCacheDtype::Int8, ..case([3, 5, 4, 7, 3], MIX) },
    Case { dtype: KvCacheDtype::Int8, ..case([4, 32, 16, 32, 32], MIX) },
    Case { dtype: KvCacheDtype::Int8, temperature: FAR, block_size: 32, ..case([17, 24, 8, 40, 20], MIX) },
    Case { dtype: KvCacheDtype::Int8, ..case([16, 128, 64, 512, 128], &[(0, 5), (40, 1), (20, 2)]) },
];

/// Contexts that devices split, for a single token and for a prompt chunk.
const LONG: Case = case([9, 16, 16, 64, 16], &[(1100, 1), (40, 1), (2100, 9)]);

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, accuracy: Accuracy, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("latent attention");
    for (seed, case) in tally.part(&CASES) {
        if L::LATENT_CACHE_DTYPES.contains(&case.dtype) {
            check_case(loader(1200)?, accuracy, seed as u64, case, tally)?;
        }
    }
    if tally.is_full() {
        check_case(loader(2200)?, accuracy, CASES.len() as u64, &LONG, tally)?;
    }
    Ok(())
}

/// A step at once and in chunks gives equal bits.
pub(crate) fn check_invariance<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    for (seed, case) in tally.part(&CASES) {
        if !L::LATENT_CACHE_DTYPES.contains(&case.dtype) {
            continue;
        }
        let what = format!("{}, in chunks", case.name());
        tally.begin(&what)?;
        let rows = Rows::new(case, seed as u64)?;
        let mut rig = Rig::new(loader(512)?, case, &rows)?;
        rig.store(&rows.pieces)?;
        let together = rig.run(&rows.pieces, Vec::new())?;
        for chunk in [1, 13] {
            let mut rig = Rig::new(loader(512)?, case, &rows)?;
            let mut alone = Vec::new();
            for piece in &rows.pieces {
                let end = piece.cached + piece.new;
                for start in (0..end).step_by(chunk) {
                    let part = Piece { cached: start, new: chunk.min(end - start), ..piece.clone() };
                    let out = rig.run(&[part], Vec::new())?;
                    let before = piece.cached.saturating_sub(start) * case.shape.value_cols();
                    alone.extend_from_slice(out.get(before..).unwrap_or(&[]));
                }
            }
            tally.same(&format!("{what} of {chunk}"), &alone, &together);
        }
    }
    Ok(())
}

fn check_case<L: Loader>(loader: L, accuracy: Accuracy, seed: u64, case: &Case, tally: &mut Tally<'_>) -> Result<()> {
    let what = case.name();
    tally.begin(&what)?;
    let mut rows = Rows::new(case, seed)?;
    let mut rig = Rig::new(loader, case, &rows)?;
    let expected: Vec<f64> = rows.pieces.iter().flat_map(|piece| rows.expected(case, piece)).collect();
    let largest = expected.iter().fold(1e-3, |most: f64, value| most.max(value.abs()));
    let tolerance = largest * case.tolerance(accuracy);
    rig.store(&rows.pieces)?;
    let got = rig.run(&rows.pieces, Vec::new())?;
    tally.close(&what, &got, &expected, 0.0, tolerance);

    // Repeat the step with the first blocks of its sequences moved, which the step itself copies.
    let mut copies = Vec::new();
    let mut free: Vec<u32> = (0..rows.num_blocks as u32).collect();
    free.retain(|block| rows.pieces.iter().all(|piece| !piece.blocks.contains(block)));
    for piece in rows.pieces.iter_mut().filter(|piece| piece.cached > 0) {
        if let Some(dst) = free.pop() {
            copies.push(BlockCopy { group: 0, src: std::mem::replace(&mut piece.blocks[0], dst), dst });
        }
    }
    let got = rig.run(&rows.pieces, copies)?;
    tally.close(&format!("{what}, blocks copied"), &got, &expected, 0.0, tolerance);
    Ok(())
}

impl Case {
    fn name(&self) -> String {
        let Self { shape, dtype, weights, temperature, .. } = self;
        let temperature = temperature.map_or("", |_| ", with a temperature");
        format!("{shape:?} of {} over {dtype:?}{temperature}", weights.name())
    }

    /// Returns the tolerance relative to the largest result. It covers the rounding of the cache and of matrices that a
    /// GPU stores as f16. It also covers the activations of a product, which have 8 bits on a CPU and 16 on a GPU.
    fn tolerance(&self, accuracy: Accuracy) -> f64 {
        let of_cache = match self.dtype {
            KvCacheDtype::F16 => 2e-3,
            // An element may be one level off.
            KvCacheDtype::Int8 | KvCacheDtype::Int4 => 1e-2,
            KvCacheDtype::F32 => 3e-5,
        };
        let of_products = match self.weights {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 if accuracy.attention_f16 < 1e-4 => 0.0,
            GgmlType::Q8_0 => 3e-2,
            _ => 5e-3,
        };
        of_products + of_cache
    }

    fn scoring(&self) -> Scoring {
        let LatentShape { plain_dim, rope_dim, rank, .. } = self.shape;
        // Scores of uniform numbers then differ from their mean by about 2, so the softmax has peaks.
        let variance = (plain_dim * rank) as f32 / 27.0 + rope_dim as f32 / 9.0;
        let of_weights = if self.weights == GgmlType::Q8_0 { 3.0 } else { 1.0 };
        Scoring::scaled(2.0 * of_weights / variance.sqrt())
    }
}

/// The rows of all tokens of a case, sequence after sequence, and its weights.
struct Rows {
    q: Vec<f32>,
    latents: Vec<f32>,
    norm: Vec<f32>,
    keys: Weights,
    values: Weights,
    rope: RopeSpec,
    pieces: Vec<Piece>,
    num_blocks: usize,
}

impl Rows {
    fn new(case: &Case, seed: u64) -> Result<Self> {
        let (mut random, shape) = (Random(seed), case.shape);
        let of_piece = |&(cached, new): &(usize, usize)| (cached + new).div_ceil(case.block_size);
        let num_blocks = 2 * case.seqs.iter().map(of_piece).sum::<usize>() + 1;
        let mut free: Vec<u32> = (0..num_blocks as u32).collect();
        let (mut pieces, mut tokens) = (Vec::new(), 0);
        for seq @ &(cached, new) in case.seqs {
            let take = |_| free.swap_remove(random.next() as usize % free.len());
            let blocks = (0..of_piece(seq)).map(take).collect();
            pieces.push(Piece { first_row: tokens, blocks, cached, new });
            tokens += cached + new;
        }
        let heads = shape.num_heads;
        Ok(Self {
            q: random.values(tokens * shape.q_cols()),
            latents: random.values(tokens * shape.row_dim()),
            norm: random.values(shape.rank),
            keys: Weights::random(case.weights, heads * shape.rank, shape.plain_dim, seed + 1)?,
            values: Weights::random(case.weights, heads * shape.value_dim, shape.rank, seed + 2)?,
            rope: RopeSpec {
                kind: if seed % 3 == 1 { RopeKind::Neox } else { RopeKind::Norm },
                inv_freq: random.values(shape.rope_dim / 2),
                magnitude: if seed.is_multiple_of(2) { 1.0 } else { 0.75 },
            },
            pieces,
            num_blocks,
        })
    }

    /// Returns a token's latent and its rotated key with the rounding of the cache.
    fn row(&self, case: &Case, first_row: usize, position: usize) -> [Vec<f64>; 2] {
        let LatentShape { rank, .. } = case.shape;
        let stored = |part: Vec<f64>| {
            let per_level = part.iter().fold(0.0f64, |top, x| top.max(x.abs())) / 127.0;
            let of_element = |x: f64| match case.dtype {
                KvCacheDtype::F16 => f16::from_f64(x).to_f64(),
                KvCacheDtype::Int8 if per_level > 0.0 => (x / per_level).round_ties_even() * per_level,
                _ => f64::from(x as f32),
            };
            part.into_iter().map(of_element).collect()
        };
        let row = &self.latents[(first_row + position) * case.shape.row_dim()..][..case.shape.row_dim()];
        let (latent, key) = row.split_at(rank);
        let squares: f64 = latent.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let factor = 1.0 / (squares / rank as f64 + f64::from(EPS)).sqrt();
        let latent = latent.iter().zip(&self.norm).map(|(&x, &w)| f64::from(x) * factor * f64::from(w));
        [stored(latent.collect()), stored(self.rotated(key, position))]
    }

    /// Returns the rotated pairs contiguously, for pairs of neighbours or of the two halves. Products ignore the order.
    fn rotated(&self, x: &[f32], position: usize) -> Vec<f64> {
        let pair = |i: usize| match self.rope.kind {
            RopeKind::Norm => [x[2 * i], x[2 * i + 1]],
            RopeKind::Neox => [x[i], x[x.len() / 2 + i]],
        };
        let pairs = (0..x.len() / 2).map(pair).zip(&self.rope.inv_freq);
        let rotate = |([a, b], inv_freq): ([f32; 2], &f32)| {
            let (sin, cos) = f64::from(position as f32 * inv_freq).sin_cos();
            let (a, b) = (f64::from(a), f64::from(b));
            [a * cos - b * sin, a * sin + b * cos].map(|x| x * f64::from(self.rope.magnitude))
        };
        pairs.flat_map(rotate).collect()
    }

    /// Returns the values of a sequence's new tokens, `[new, value_cols]`. Each head has its own keys and values.
    fn expected(&self, case: &Case, piece: &Piece) -> Vec<f64> {
        let LatentShape { num_heads, plain_dim, rank, value_dim, .. } = case.shape;
        let end = piece.cached + piece.new;
        let rows: Vec<_> = (0..end).map(|position| self.row(case, piece.first_row, position)).collect();
        let mut out = vec![0.0; piece.new * case.shape.value_cols()];
        for head in 0..num_heads {
            let of_head = |weights: &Weights, rows: usize, cols: usize| {
                weights.values[head * rows * cols..][..rows * cols].to_vec()
            };
            let (to_latent, to_values) = (of_head(&self.keys, rank, plain_dim), of_head(&self.values, value_dim, rank));
            let key = |latent: &[f64]| -> Vec<f64> {
                let column = |i| latent.iter().zip(to_latent.iter().skip(i).step_by(plain_dim));
                (0..plain_dim).map(|i| column(i).map(|(x, &w)| x * f64::from(w)).sum()).collect()
            };
            let value = |latent: &[f64]| -> Vec<f64> {
                to_values.chunks(rank).map(|row| dot(row.iter().map(|&w| f64::from(w)), latent)).collect()
            };
            let keys: Vec<_> = rows.iter().map(|[latent, _]| key(latent)).collect();
            let values: Vec<_> = rows.iter().map(|[latent, _]| value(latent)).collect();
            for position in piece.cached..end {
                let q = &self.q[(piece.first_row + position) * case.shape.q_cols()..];
                let (plain, rotated) = q[head * case.shape.head_dim()..][..case.shape.head_dim()].split_at(plain_dim);
                let rotated = self.rotated(rotated, position);
                let far = case.temperature.map_or(1.0, |temperature| f64::from(temperature.at(position as u32)));
                let score = |token: usize| {
                    let plain = dot(plain.iter().map(|&x| f64::from(x)), &keys[token]);
                    far * f64::from(case.scoring().scale) * (plain + dot(rotated.iter().copied(), &rows[token][1]))
                };
                let scores: Vec<f64> = (0..=position).map(score).collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
                let total: f64 = weights.iter().sum();
                let at = (position - piece.cached) * case.shape.value_cols() + head * value_dim;
                for (weight, value) in weights.iter().zip(&values) {
                    let out = out[at..at + value_dim].iter_mut().zip(value);
                    out.for_each(|(out, value)| *out += weight / total * value);
                }
            }
        }
        out
    }
}

fn dot(a: impl Iterator<Item = f64>, b: &[f64]) -> f64 {
    a.zip(b).map(|(a, b)| a * b).sum()
}

/// A layer of latent attention on a backend.
struct Rig<L: Loader> {
    backend: L::Backend,
    shape: LatentShape,
    spec: KvLayerSpec,
    scoring: Scoring,
    temperature: Option<Temperature>,
    /// The rows of all tokens, followed by a block of rows of NaN.
    q_table: <L::Backend as Backend>::Matrix,
    latent_table: <L::Backend as Backend>::Matrix,
    norm: <L::Backend as Backend>::Vector,
    keys: <L::Backend as Backend>::HeadMatrices,
    values: <L::Backend as Backend>::HeadMatrices,
    rope: <L::Backend as Backend>::Rope,
    kv: <L::Backend as Backend>::KvLayer,
    angles: BufferOf<L>,
    q: BufferOf<L>,
    latents: BufferOf<L>,
    queries: BufferOf<L>,
    found: BufferOf<L>,
    out: BufferOf<L>,
}

impl<L: Loader> Rig<L> {
    fn new(mut loader: L, case: &Case, rows: &Rows) -> Result<Self> {
        let &Case { shape, block_size, dtype, temperature, .. } = case;
        let num_rows = rows.q.len() / shape.q_cols();
        let most = num_rows.max(block_size);
        let with_nan = |rows: &[f32], cols: usize| {
            let nan = std::iter::repeat_n(f32::NAN, block_size * cols);
            rows.iter().copied().chain(nan).collect::<Vec<_>>()
        };
        let (head_dim, latent) = (shape.row_dim(), Some(shape.rank));
        let (kind, num_blocks) = (GroupKind::Full, rows.num_blocks);
        let spec =
            KvLayerSpec { kind, skips_first: false, num_blocks, block_size, num_kv_heads: 1, head_dim, latent, dtype };
        let mut rig = Self {
            shape,
            spec,
            scoring: case.scoring(),
            temperature,
            q_table: matrix(&mut loader, &with_nan(&rows.q, shape.q_cols()), shape.q_cols())?,
            latent_table: matrix(&mut loader, &with_nan(&rows.latents, head_dim), head_dim)?,
            norm: vector(&mut loader, &rows.norm)?,
            keys: loader.upload_heads(rows.keys.view(), shape.num_heads, &mut |_| Ok(()))?,
            values: loader.upload_heads(rows.values.view(), shape.num_heads, &mut |_| Ok(()))?,
            rope: loader.upload_rope(&rows.rope)?,
            kv: kv_layer(&mut loader, spec)?,
            angles: loader.alloc_buffer(most, shape.rope_dim)?,
            q: loader.alloc_buffer(most, shape.q_cols())?,
            latents: loader.alloc_buffer(most, head_dim)?,
            queries: loader.alloc_buffer(most, shape.queries().q_cols())?,
            found: loader.alloc_buffer(most, shape.found_cols())?,
            out: loader.alloc_buffer(most, shape.value_cols())?,
            backend: loader.finish()?,
        };
        // Fill the cache with NaN, which exposes a read of anything not stored.
        for block in 0..num_blocks as u32 {
            rig.store_rows(Piece { first_row: num_rows, blocks: vec![block], cached: 0, new: block_size })?;
        }
        Ok(rig)
    }

    /// Stores the cached tokens of the sequences.
    fn store(&mut self, pieces: &[Piece]) -> Result<()> {
        for piece in pieces.iter().filter(|piece| piece.cached > 0) {
            self.store_rows(Piece { cached: 0, new: piece.cached, ..piece.clone() })?;
        }
        Ok(())
    }

    /// Stores the new tokens without attention, which would take a simulated device minutes for a long context.
    fn store_rows(&mut self, piece: Piece) -> Result<()> {
        self.step(&[piece], Vec::new(), false)
    }

    /// Returns the values of the new tokens.
    fn run(&mut self, pieces: &[Piece], block_copies: Vec<BlockCopy>) -> Result<Vec<f32>> {
        self.step(pieces, block_copies, true)?;
        let rows = pieces.iter().map(|piece| piece.new).sum();
        Ok(self.backend.to_host(&self.out, rows, self.shape.value_cols())?.to_vec())
    }

    fn step(&mut self, pieces: &[Piece], block_copies: Vec<BlockCopy>, attends: bool) -> Result<()> {
        let batch = Batch { block_copies, ..batch_of(pieces, self.spec.block_size, GroupKind::Full) };
        let (shape, rows) = (self.shape, batch.num_tokens());
        let Self { backend, rope, kv, angles, q, latents, queries, found, out, .. } = self;
        let (q_table, latent_table, norm, keys, values) =
            (&self.q_table, &self.latent_table, &self.norm, &self.keys, &self.values);
        let (scoring, temperature) = (self.scoring, self.temperature);
        backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
            step.rope_angles(RopeAngles { rope, out: angles })?;
            step.copy_blocks(CopyBlocks { group: 0, kv })?;
            step.embed(Embed { table: q_table, scale: 1.0, out: q })?;
            step.embed(Embed { table: latent_table, scale: 1.0, out: latents })?;
            let (x_head, out_head) = (shape.head_dim(), shape.row_dim());
            step.head_products(HeadProducts { x: q, x_head, matrices: keys, rows, out: queries, out_head })?;
            step.rope_and_store_latent(RopeAndStoreLatent {
                q,
                queries,
                latent: latents,
                shape,
                norm,
                eps: EPS,
                rope,
                angles,
                temperature,
                group: 0,
                kv,
            })?;
            if !attends {
                return Ok(());
            }
            let layout = shape.queries();
            step.attention(Attention {
                qkv: queries,
                layout,
                scoring,
                sinks: None,
                biases: None,
                group: 0,
                kv,
                out: found,
            })?;
            let (x_head, out_head) = (shape.rank, shape.value_dim);
            step.head_products(HeadProducts { x: found, x_head, matrices: values, rows, out, out_head })
        })
    }
}
