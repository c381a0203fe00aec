//! Paged attention, compared with softmax(q·k) v in f64 over the values in the cache.

pub(crate) mod kv_groups;
mod kv_rounding;
pub mod latent;
pub mod rope_attention;
pub(crate) mod shared_kv;

use super::{Accuracy, AttentionRig, Piece, Random, Tally, no_rope};
use crate::Result;
use crate::backend::{KvLayerSpec, Loader, QkvLayout, Scoring};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use kv_rounding::stored;

/// Sequences are `(tokens in the cache, tokens of the step)`.
pub(super) struct Case {
    pub(super) num_heads: usize,
    pub(super) num_kv_heads: usize,
    pub(super) head_dim: usize,
    /// Elements of a head of V.
    pub(super) value_dim: usize,
    pub(super) block_size: usize,
    pub(super) window: Option<u32>,
    /// Tokens of a chunk. Tokens only attend to tokens of their own chunk.
    pub(super) chunk: Option<u32>,
    /// Tokens that a token attends to on each side, in bidirectional attention.
    pub(super) reach: Option<u32>,
    pub(super) softcap: Option<f32>,
    /// See `Scoring::alibi`.
    pub(super) alibi: Option<f32>,
    /// The largest distance with a bias of its own; see `Attention::biases`.
    pub(super) bias_reach: Option<usize>,
    pub(super) sinks: bool,
    pub(super) gated: bool,
    /// See `KvLayerSpec::skips_first`.
    pub(super) skips_first: bool,
    pub(super) dtype: KvCacheDtype,
    pub(super) seqs: &'static [(usize, usize)],
}

pub(super) const fn case(
    heads: [usize; 2],
    head_dim: usize,
    block_size: usize,
    seqs: &'static [(usize, usize)],
) -> Case {
    let [num_heads, num_kv_heads] = heads;
    let (window, chunk, reach, softcap, alibi, bias_reach) = (None, None, None, None, None, None);
    let (sinks, gated, skips_first) = (false, false, false);
    let dtype = KvCacheDtype::F16;
    Case {
        num_heads,
        num_kv_heads,
        head_dim,
        value_dim: head_dim,
        block_size,
        window,
        chunk,
        reach,
        softcap,
        alibi,
        bias_reach,
        sinks,
        gated,
        skips_first,
        dtype,
        seqs,
    }
}

const MIX: &[(usize, usize)] = &[(0, 1), (16, 1), (0, 17), (127, 3), (129, 1), (160, 9), (5, 40)];

/// Group sizes 1, 2, 4, 7, 8 and 18, odd heads first, and sequences of several row tiles. Then windows, caps, sinks and
/// gates. Then a cache in f32, wide heads, excluded first tokens, chunks, and values shorter than keys.
pub(super) const CASES: [Case; 46] = [
    case([1, 1], 1, 16, &[(0, 1)]),
    case([2, 1], 3, 16, &[(0, 5), (20, 1)]),
    case([4, 1], 17, 32, MIX),
    case([7, 1], 80, 16, MIX),
    case([8, 1], 33, 48, MIX),
    case([18, 1], 24, 16, &[(70, 1), (0, 1), (3, 2)]),
    case([3, 3], 64, 16, MIX),
    case([9, 3], 64, 16, MIX),
    case([16, 2], 128, 16, &[(0, 40), (300, 1)]),
    case([2, 2], 256, 16, &[(0, 33), (130, 2)]),
    case([2, 1], 128, 16, &[(37, 150), (0, 64), (0, 129)]),
    case([1, 1], 200, 32, &[(3, 140)]),
    Case { window: Some(50), ..case([2, 1], 96, 32, &[(300, 140), (0, 66)]) },
    Case { window: Some(1), ..case([2, 1], 16, 16, MIX) },
    Case { window: Some(5), ..case([4, 2], 20, 16, MIX) },
    Case { window: Some(16), softcap: Some(2.0), ..case([4, 1], 64, 16, MIX) },
    Case { window: Some(140), ..case([6, 3], 48, 32, MIX) },
    Case { softcap: Some(0.5), ..case([3, 1], 40, 16, MIX) },
    Case { sinks: true, ..case([8, 1], 64, 16, MIX) },
    Case { sinks: true, window: Some(16), ..case([6, 2], 20, 16, &[(300, 40), (0, 66), (47, 1)]) },
    Case { sinks: true, softcap: Some(2.0), ..case([2, 2], 256, 16, &[(0, 33), (130, 2), (0, 1)]) },
    Case { gated: true, ..case([3, 1], 7, 16, &[(0, 5), (20, 1)]) },
    Case { gated: true, ..case([8, 2], 64, 16, MIX) },
    Case { gated: true, sinks: true, ..case([2, 1], 256, 16, &[(0, 33), (300, 1), (130, 2), (0, 1)]) },
    Case { gated: true, dtype: KvCacheDtype::F32, ..case([6, 2], 20, 16, MIX) },
    Case { dtype: KvCacheDtype::F32, ..case([2, 1], 3, 16, &[(0, 5), (20, 1)]) },
    Case { dtype: KvCacheDtype::F32, ..case([7, 1], 80, 32, MIX) },
    Case { dtype: KvCacheDtype::F32, ..case([9, 3], 64, 16, MIX) },
    Case { dtype: KvCacheDtype::F32, window: Some(20), ..case([4, 2], 33, 16, MIX) },
    Case { dtype: KvCacheDtype::F32, sinks: true, ..case([4, 2], 64, 16, MIX) },
    case([4, 1], 512, 16, &[(0, 20), (130, 1), (40, 3)]),
    case([2, 2], 261, 16, &[(0, 5), (37, 1)]),
    Case { window: Some(20), ..case([2, 1], 384, 32, &[(70, 9), (50, 1)]) },
    case([5, 1], 320, 16, &[(300, 1)]),
    Case { dtype: KvCacheDtype::F32, sinks: true, ..case([3, 1], 512, 16, &[(0, 9), (40, 1)]) },
    Case { skips_first: true, ..case([4, 2], 64, 16, &[(0, 1), (1, 1), (16, 1), (0, 70), (0, 2), (1, 5), (300, 1)]) },
    Case { skips_first: true, gated: true, ..case([6, 1], 256, 16, &[(0, 33), (1, 1), (130, 2)]) },
    Case { skips_first: true, dtype: KvCacheDtype::F32, ..case([3, 1], 17, 16, &[(0, 1), (0, 19), (1, 1), (40, 1)]) },
    Case { chunk: Some(1), ..case([2, 1], 16, 16, MIX) },
    Case { chunk: Some(32), ..case([4, 2], 64, 16, &[(31, 1), (32, 1), (0, 150), (95, 70), (300, 1)]) },
    Case { chunk: Some(8), dtype: KvCacheDtype::F32, ..case([3, 1], 17, 16, MIX) },
    Case { chunk: Some(128), sinks: true, gated: true, ..case([2, 1], 256, 32, &[(127, 1), (128, 1), (100, 70)]) },
    Case { value_dim: 8, ..case([4, 2], 24, 16, MIX) },
    Case { value_dim: 128, sinks: true, ..case([8, 2], 192, 16, MIX) },
    Case { value_dim: 16, dtype: KvCacheDtype::F32, ..case([6, 1], 64, 32, MIX) },
    Case { value_dim: 64, window: Some(20), ..case([2, 2], 128, 16, &[(37, 150), (0, 64), (300, 1)]) },
];

/// Whole prompts of one token and of several row tiles.
const WHOLE: &[(usize, usize)] = &[(0, 150), (0, 1), (0, 33), (0, 64)];
const ALL: Option<u32> = Some(u32::MAX);

/// Bidirectional attention to all tokens, then to those within reach, then over an f32 cache; odd heads first. Tokens
/// of an earlier step count like all others.
pub(super) const BIDIRECTIONAL: [Case; 15] = [
    Case { reach: ALL, ..case([1, 1], 1, 16, &[(0, 1)]) },
    Case { reach: ALL, ..case([2, 1], 3, 16, &[(0, 5), (20, 1), (7, 3)]) },
    Case { reach: ALL, ..case([7, 1], 80, 16, MIX) },
    Case { reach: ALL, ..case([4, 4], 16, 16, WHOLE) },
    Case { reach: ALL, ..case([2, 2], 32, 16, WHOLE) },
    Case { reach: ALL, ..case([3, 3], 64, 32, WHOLE) },
    Case { reach: ALL, softcap: Some(2.0), ..case([4, 2], 128, 16, &[(37, 150), (0, 64)]) },
    Case { reach: ALL, ..case([1, 1], 256, 16, &[(0, 70), (130, 2)]) },
    Case { reach: Some(0), ..case([2, 1], 16, 16, MIX) },
    Case { reach: Some(5), ..case([4, 2], 20, 16, MIX) },
    Case { reach: Some(8), ..case([2, 2], 32, 16, WHOLE) },
    Case { reach: Some(64), ..case([2, 1], 64, 32, &[(0, 300), (0, 1), (70, 9)]) },
    Case { reach: Some(40), sinks: true, gated: true, ..case([2, 1], 96, 16, &[(0, 140), (0, 66)]) },
    Case { reach: ALL, dtype: KvCacheDtype::F32, ..case([3, 3], 32, 16, WHOLE) },
    Case { reach: Some(8), dtype: KvCacheDtype::F32, ..case([2, 2], 64, 16, WHOLE) },
];

/// Prompt chunks with contexts that devices split.
const SPLIT: [Case; 8] = [
    case([2, 1], 40, 16, &[(2200, 70), (0, 5), (1100, 1)]),
    case([2, 2], 128, 16, &[(3200, 3)]),
    Case { softcap: Some(2.0), sinks: true, ..case([2, 1], 256, 32, &[(2100, 33)]) },
    Case { window: Some(2500), gated: true, ..case([1, 1], 64, 16, &[(3000, 20)]) },
    case([1, 1], 512, 16, &[(2100, 9)]),
    Case { alibi: Some(8.0), ..case([3, 1], 128, 16, &[(2200, 70), (1099, 1), (0, 129)]) },
    int8(case([2, 2], 128, 16, &[(3200, 3)])),
    int8(Case { window: Some(2500), ..case([1, 1], 64, 16, &[(3000, 20)]) }),
];

/// ALiBi with powers of two and other numbers of heads, over all types of the cache, with windows, caps and sinks.
pub(super) const ALIBI: [Case; 11] = [
    Case { alibi: Some(8.0), ..case([1, 1], 3, 16, &[(0, 5), (20, 1)]) },
    Case { alibi: Some(8.0), ..case([6, 6], 16, 16, MIX) },
    Case { alibi: Some(8.0), ..case([4, 4], 64, 16, MIX) },
    Case { alibi: Some(5.0), ..case([12, 3], 128, 16, &[(37, 150), (0, 64), (0, 129), (300, 1)]) },
    Case { alibi: Some(8.0), ..case([3, 1], 256, 32, &[(0, 33), (130, 2), (300, 1)]) },
    Case { alibi: Some(8.0), ..case([2, 2], 320, 16, &[(0, 20), (130, 1)]) },
    Case { alibi: Some(8.0), dtype: KvCacheDtype::F32, ..case([6, 2], 17, 16, MIX) },
    Case { alibi: Some(8.0), dtype: KvCacheDtype::F32, ..case([7, 7], 80, 16, &[(400, 1), (0, 70)]) },
    Case { alibi: Some(8.0), window: Some(20), sinks: true, ..case([6, 3], 64, 16, MIX) },
    Case { alibi: Some(4.0), softcap: Some(2.0), gated: true, ..case([5, 1], 96, 16, MIX) },
    int8(Case { alibi: Some(8.0), ..case([6, 2], 64, 16, MIX) }),
];

/// Biases of distances within and beyond their reach, in both directions and causal, over all types of the cache.
pub(super) const BIASES: [Case; 12] = [
    Case { bias_reach: Some(128), reach: ALL, ..case([4, 4], 16, 16, WHOLE) },
    Case { bias_reach: Some(128), reach: ALL, ..case([12, 12], 64, 16, &[(0, 300), (0, 1), (0, 129)]) },
    Case { bias_reach: Some(7), reach: ALL, softcap: Some(2.0), ..case([3, 1], 128, 32, WHOLE) },
    Case { bias_reach: Some(0), reach: ALL, ..case([2, 2], 17, 16, &[(0, 5), (20, 1), (7, 3)]) },
    Case { bias_reach: Some(40), reach: ALL, ..case([2, 2], 256, 16, &[(0, 70), (130, 2)]) },
    Case { bias_reach: Some(9), reach: ALL, ..case([2, 1], 320, 16, &[(0, 20), (0, 1)]) },
    Case { bias_reach: Some(20), reach: Some(30), sinks: true, ..case([2, 2], 32, 16, WHOLE) },
    Case { bias_reach: Some(30), reach: ALL, dtype: KvCacheDtype::F32, ..case([3, 3], 64, 16, WHOLE) },
    int8(Case { bias_reach: Some(30), reach: ALL, ..case([2, 2], 64, 16, WHOLE) }),
    Case { bias_reach: Some(30), ..case([7, 1], 80, 16, MIX) },
    Case { bias_reach: Some(30), window: Some(50), gated: true, ..case([6, 2], 128, 16, MIX) },
    Case { bias_reach: Some(30), dtype: KvCacheDtype::F32, ..case([2, 2], 16, 16, MIX) },
];

const fn int8(case: Case) -> Case {
    Case { dtype: KvCacheDtype::Int8, ..case }
}

/// Absolute error of attention over an int8 cache with values up to 1, compared with the values before storing. Half a
/// level of V is 0.004, and the rounding of K moves the weights.
const INT8_ERROR: f64 = 0.03;

/// An int8 cache with odd sizes, groups of heads, wide heads, and all kinds of masks.
pub(super) const INT8: [Case; 17] = [
    int8(case([1, 1], 1, 16, &[(0, 1)])),
    int8(case([2, 1], 3, 16, &[(0, 5), (20, 1)])),
    int8(case([7, 1], 80, 32, MIX)),
    int8(case([8, 1], 33, 48, MIX)),
    int8(case([9, 3], 64, 16, MIX)),
    int8(case([16, 2], 128, 16, &[(0, 40), (300, 1)])),
    int8(case([2, 1], 128, 16, &[(37, 150), (0, 64), (0, 129)])),
    int8(case([2, 2], 256, 16, &[(0, 33), (130, 2)])),
    int8(case([4, 1], 512, 16, &[(0, 20), (130, 1), (40, 3)])),
    int8(case([2, 2], 261, 16, &[(0, 5), (37, 1)])),
    int8(Case { window: Some(20), ..case([4, 2], 33, 16, MIX) }),
    int8(Case { window: Some(16), softcap: Some(2.0), ..case([4, 1], 64, 16, MIX) }),
    int8(Case { sinks: true, gated: true, ..case([8, 1], 64, 16, MIX) }),
    int8(Case { skips_first: true, ..case([4, 2], 64, 16, &[(0, 1), (1, 1), (16, 1), (0, 70), (1, 5), (300, 1)]) }),
    int8(Case { value_dim: 32, ..case([4, 2], 64, 16, MIX) }),
    int8(Case { reach: ALL, ..case([3, 3], 64, 32, WHOLE) }),
    int8(Case { reach: Some(8), ..case([2, 1], 96, 16, &[(0, 140), (0, 66)]) }),
];

const fn int4(case: Case) -> Case {
    Case { dtype: KvCacheDtype::Int4, ..case }
}

/// Absolute error of attention over an int4 cache with values up to 1, compared with the values before storing. Half a
/// level of V is 0.07, and the rounding of K moves the weights.
const INT4_ERROR: f64 = 0.4;

/// An int4 cache with heads that are and are not whole blocks of 32, groups of heads, and all kinds of masks.
pub(super) const INT4: [Case; 16] = [
    int4(case([9, 3], 64, 16, MIX)),
    int4(case([1, 1], 1, 16, &[(0, 1)])),
    int4(case([2, 1], 3, 16, &[(0, 5), (20, 1)])),
    int4(case([7, 1], 80, 32, MIX)),
    int4(case([8, 1], 33, 48, MIX)),
    int4(case([16, 2], 128, 16, &[(0, 40), (300, 1)])),
    int4(case([2, 1], 96, 16, &[(37, 150), (0, 64), (0, 129)])),
    int4(case([2, 2], 256, 16, &[(0, 33), (130, 2)])),
    int4(case([4, 1], 512, 16, &[(0, 20), (130, 1), (40, 3)])),
    int4(Case { window: Some(20), ..case([4, 2], 33, 16, MIX) }),
    int4(Case { window: Some(16), softcap: Some(2.0), ..case([4, 1], 64, 16, MIX) }),
    int4(Case { sinks: true, gated: true, ..case([8, 1], 64, 16, MIX) }),
    int4(Case { skips_first: true, ..case([4, 2], 64, 16, &[(0, 1), (1, 1), (16, 1), (0, 70), (1, 5), (300, 1)]) }),
    int4(Case { value_dim: 128, ..case([4, 2], 192, 16, MIX) }),
    int4(Case { reach: ALL, ..case([3, 3], 64, 32, WHOLE) }),
    int4(Case { chunk: Some(32), ..case([4, 2], 64, 16, &[(31, 1), (32, 1), (0, 150), (95, 70), (300, 1)]) }),
];

impl Case {
    pub(super) fn layout(&self) -> QkvLayout {
        let &Self { num_heads, num_kv_heads, head_dim, value_dim, gated, .. } = self;
        QkvLayout { num_heads, num_kv_heads, head_dim, value_dim, gated, has_kv: true }
    }

    pub(super) fn scoring(&self) -> Scoring {
        // Larger than 1/sqrt(d), so the softmax has peaks.
        let scaled = Scoring::scaled(6.0 / (self.head_dim as f32).sqrt());
        Scoring { softcap: self.softcap, alibi: self.alibi, ..scaled }
    }

    pub(super) fn kind(&self) -> GroupKind {
        match (self.window, self.chunk, self.reach) {
            (None, None, None) => GroupKind::Full,
            (Some(window), ..) => GroupKind::Sliding { window },
            (None, Some(size), _) => GroupKind::Chunked { size },
            (None, None, Some(reach)) => GroupKind::Bidirectional { reach },
        }
    }

    /// Returns one sink per head, with the magnitude of a key's score, if the case has sinks.
    pub(super) fn sinks(&self) -> Option<Vec<f32>> {
        let values = Random(self.num_heads as u64).values(self.num_heads);
        self.sinks.then(|| values.iter().map(|value| 4.0 * value).collect())
    }

    /// Returns the biases of all heads, as large as a key's score, if the case has biases.
    pub(super) fn biases(&self) -> Option<Vec<f32>> {
        let values = |reach: usize| Random(reach as u64).values(self.num_heads * (2 * reach + 1));
        self.bias_reach.map(|reach| values(reach).iter().map(|value| 4.0 * value).collect())
    }

    /// Returns the case's layer on a backend without rotation.
    pub(super) fn rig<L: Loader>(&self, loader: L, spec: KvLayerSpec, rows: &[f32]) -> Result<AttentionRig<L>> {
        let (sinks, biases) = (self.sinks(), self.biases());
        let (layout, rotation) = (self.layout(), no_rope().into());
        AttentionRig::with_rotation(loader, layout, spec, rows, &rotation, sinks.as_deref(), biases.as_deref())
    }

    fn contexts(&self) -> impl Iterator<Item = usize> {
        self.seqs.iter().map(|(cached, new)| cached + new)
    }

    /// Returns pieces with blocks in random order. Half of the pool stays unused.
    pub(super) fn pieces(&self, random: &mut Random) -> (Vec<Piece>, KvLayerSpec) {
        let needed: usize = self.contexts().map(|n| n.div_ceil(self.block_size)).sum();
        let num_blocks = 2 * needed + 1;
        let mut free: Vec<u32> = (0..num_blocks as u32).collect();
        let mut first_row = 0;
        let pieces = self.seqs.iter().map(|&(cached, new)| {
            let count = (cached + new).div_ceil(self.block_size);
            let take = |_| free.swap_remove(random.next() as usize % free.len());
            first_row += cached + new;
            Piece { first_row: first_row - cached - new, blocks: (0..count).map(take).collect(), cached, new }
        });
        let pieces = pieces.collect();
        let &Self { block_size, num_kv_heads, head_dim, skips_first, dtype, .. } = self;
        (
            pieces,
            KvLayerSpec {
                kind: self.kind(),
                skips_first,
                num_blocks,
                block_size,
                num_kv_heads,
                head_dim,
                latent: None,
                dtype,
            },
        )
    }

    /// Returns the absolute tolerance.
    pub(super) fn tolerance(&self, accuracy: Accuracy) -> f64 {
        match self.dtype {
            // Matrix units read both as f16.
            KvCacheDtype::F16 | KvCacheDtype::Int8 => accuracy.attention_f16,
            KvCacheDtype::F32 => 2e-6,
            // The rotations of q and k are rounded too.
            KvCacheDtype::Int4 => 4.0 * accuracy.attention_f16,
        }
    }

    /// Returns the qkv rows of all tokens, sequence after sequence.
    pub(super) fn rows(&self, random: &mut Random) -> Vec<f32> {
        random.values(self.contexts().sum::<usize>() * self.layout().cols())
    }
}

/// Mixed short and long contexts of one more token than these. Devices split long ones over several thread blocks; the
/// last split may be short, or only the new token.
const UNEVEN: &[(usize, usize)] = &[(640, 1), (0, 1), (15, 1), (128, 1), (1099, 1), (255, 1), (36, 1)];

/// Contexts around and far beyond what a kernel holds at once, for groups of 1 to 10 heads.
const LONG: [Case; 13] = [
    case([2, 1], 64, 16, &[(31, 1), (32, 1), (999, 1), (4096, 1)]),
    case([8, 1], 128, 16, UNEVEN),
    case([1, 1], 128, 32, UNEVEN),
    case([10, 1], 64, 16, UNEVEN),
    case([6, 2], 256, 16, UNEVEN),
    case([4, 1], 33, 16, UNEVEN),
    Case { window: Some(300), sinks: true, ..case([5, 1], 64, 48, UNEVEN) },
    Case { window: Some(129), softcap: Some(2.0), ..case([3, 1], 128, 16, UNEVEN) },
    Case { skips_first: true, gated: true, ..case([7, 1], 80, 16, UNEVEN) },
    int8(case([10, 1], 128, 16, UNEVEN)),
    int8(case([6, 2], 256, 16, UNEVEN)),
    int8(case([4, 1], 33, 16, UNEVEN)),
    int8(Case { window: Some(300), sinks: true, softcap: Some(2.0), ..case([5, 1], 64, 48, UNEVEN) }),
];

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, accuracy: Accuracy, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("attention");
    let int4 = if L::KV_CACHE_DTYPES.contains(&KvCacheDtype::Int4) { &INT4[..] } else { &[] };
    for cases in [&CASES[..], &BIDIRECTIONAL, &SPLIT, &INT8, int4, &ALIBI, &BIASES] {
        for (seed, case) in tally.part(cases) {
            check_case(&loader, accuracy, seed, case, tally)?;
        }
    }
    if tally.is_full() {
        for (seed, case) in LONG.iter().enumerate() {
            check_case(&loader, accuracy, CASES.len() + seed, case, tally)?;
        }
    }
    nothing_to_attend_to(&loader, tally)
}

fn check_case<L: Loader>(
    loader: &impl Fn(usize) -> Result<L>,
    accuracy: Accuracy,
    seed: usize,
    case: &Case,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let what = format!("attention {seed}: {:?} {:?} {:?}", case.layout(), case.kind(), case.dtype);
    tally.begin(&what)?;
    let mut random = Random(seed as u64);
    let rows = case.rows(&mut random);
    let (pieces, spec) = case.pieces(&mut random);
    let mut rig = case.rig(loader(4097)?, spec, &rows)?;
    let got = rig.run(case.scoring(), &pieces)?;
    tally.close(&what, &got, &expected(case, &pieces, &rows), 1e-5, case.tolerance(accuracy));
    let error = match case.dtype {
        KvCacheDtype::F16 | KvCacheDtype::F32 => return Ok(()),
        KvCacheDtype::Int8 => INT8_ERROR,
        KvCacheDtype::Int4 => INT4_ERROR,
    };
    let exact = Case { dtype: KvCacheDtype::F32, ..*case };
    tally.close(&format!("{what}, of what was stored"), &got, &expected(&exact, &pieces, &rows), 0.0, error);
    Ok(())
}

/// Returns the output of a step of `pieces`. `rows` holds the qkv rows of all their tokens.
pub(super) fn expected(case: &Case, pieces: &[Piece], rows: &[f32]) -> Vec<f64> {
    let of_piece = |piece: &Piece| {
        let rows = &rows[piece.first_row * case.layout().cols()..];
        (piece.cached..piece.cached + piece.new)
            .flat_map(|position| reference(case, rows, position, piece.cached + piece.new))
            .collect::<Vec<_>>()
    };
    pieces.iter().flat_map(of_piece).collect()
}

/// Such layers do not exist: a window of zero tokens would mask even the token itself. No kernel combines a window with
/// an excluded first token.
fn nothing_to_attend_to<L: Loader>(loader: &impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    let of_window = |window| Case { window: Some(window), ..case([4, 2], 20, 16, &[(0, 5)]) };
    let without_first = Case { skips_first: true, ..of_window(3) };
    let of_chunk = |size| Case { chunk: Some(size), ..case([4, 2], 20, 16, &[(0, 5)]) };
    for (what, case) in [
        ("a window of no tokens", of_window(0)),
        ("a window without the first token", without_first),
        ("chunks of no tokens", of_chunk(0)),
        ("chunks of 24 tokens", of_chunk(24)),
    ] {
        refused(loader(512)?, what, &case, tally)?;
    }
    Ok(())
}

fn refused<L: Loader>(mut loader: L, what: &str, case: &Case, tally: &mut Tally<'_>) -> Result<()> {
    tally.begin(what)?;
    let (_, spec) = case.pieces(&mut Random(0));
    let refused = loader.alloc_kv_layers(&[spec]).is_err();
    tally.judge(what, 1, if refused { Ok(0.0) } else { Err("taken as if it were one".to_owned()) });
    Ok(())
}

/// Returns the slope of a head as the paper's authors compute it. If the number of heads is no power of two, the slopes
/// of the next lower power come first. Then every other slope of the next higher one follows.
fn alibi_slope(bias: f64, head: usize, num_heads: usize) -> f64 {
    let slopes_of = |n: usize| (1..=n).map(move |i| (-bias * i as f64 / n as f64).exp2());
    let lower = (num_heads + 1).next_power_of_two() / 2;
    slopes_of(lower).chain(slopes_of(2 * lower).step_by(2)).nth(head).unwrap_or(f64::NAN)
}

/// Returns one token's output, `[num_heads * value_dim]`, from its sequence's `context` qkv rows.
fn reference(case: &Case, rows: &[f32], position: usize, context: usize) -> Vec<f64> {
    let layout = case.layout();
    let (Scoring { scale, softcap, alibi }, sinks, biases) = (case.scoring(), case.sinks(), case.biases());
    let sees = |token: &usize| match case.kind() {
        GroupKind::Full => *token <= position && (*token > 0 || position == 0 || !case.skips_first),
        GroupKind::Sliding { window } => *token <= position && position - token < window as usize,
        GroupKind::Chunked { size } => *token <= position && token / size as usize == position / size as usize,
        GroupKind::Bidirectional { reach } => token.abs_diff(position) <= reach as usize,
    };
    let seen: Vec<usize> = (0..context).filter(sees).collect();
    let (d, values) = (layout.head_dim, layout.value_dim);
    let cached = |token: usize, column: usize, len: usize| {
        let is_key = column < layout.q_cols() + layout.k_cols();
        stored(case.dtype, &rows[token * layout.cols() + layout.gate_cols() + column..][..len], is_key)
    };
    let mut out = Vec::new();
    for head in 0..layout.num_heads {
        let q = &rows[position * layout.cols() + layout.gate_cols() + head * d..][..d];
        let kv_head = head * layout.num_kv_heads / layout.num_heads;
        let slope = alibi.map_or(0.0, |bias| alibi_slope(f64::from(bias), head, layout.num_heads));
        let scores: Vec<f64> = seen
            .iter()
            .map(|&token| {
                let k = cached(token, layout.q_cols() + kv_head * d, d);
                let dot: f64 = q.iter().zip(&k).map(|(&q, k)| f64::from(q) * k).sum();
                let score = dot * f64::from(scale);
                let score = softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                let bias = biases.as_ref().zip(case.bias_reach).map_or(0.0, |(biases, reach)| {
                    let place = (reach + token).saturating_sub(position).min(2 * reach);
                    f64::from(biases[head * (2 * reach + 1) + place])
                });
                score + bias - slope * (position as f64 - token as f64)
            })
            .collect();
        let sink = sinks.as_ref().map(|sinks| f64::from(sinks[head]));
        let top = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - top).exp());
        let mut sums = vec![0.0; values];
        for (&token, weight) in seen.iter().zip(&weights) {
            let v = cached(token, layout.q_cols() + layout.k_cols() + kv_head * values, values);
            sums.iter_mut().zip(&v).for_each(|(sum, v)| *sum += weight / total * v);
        }
        if layout.gated {
            let gates = &rows[position * layout.cols() + head * d..][..d];
            sums.iter_mut().zip(gates).for_each(|(sum, &gate)| *sum /= 1.0 + (-f64::from(gate)).exp());
        }
        out.extend(sums);
    }
    out
}
