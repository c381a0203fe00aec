//! RoPE, store and attention in one op for steps of single tokens. The second of two steps reads what the first one
//! stored.

use super::{Case, expected};
use crate::Result;
use crate::backend::{KvLayerSpec, Loader, QkvLayout, RopeKind, RopeSpec, Temperature};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use crate::rope::{HostNorms, HostRotation, Norms, TEMPERATURE};
use crate::{AttentionRig, Piece, Random, Tally, batch_of};

/// Tokens in the cache; two are new.
const SEQS: &[(usize, usize)] = &[(0, 2), (1, 2), (15, 2), (31, 2), (127, 2), (130, 2), (300, 2)];
/// Devices may use other kernels for few or long sequences.
const FEW: &[(usize, usize)] = &[(260, 2)];
const LONG: &[(usize, usize)] = &[(1100, 2), (40, 2)];
/// Many sequences: with eight KV heads this is many for a device with 132 multiprocessors. One is long enough to be
/// split.
const MANY: &[(usize, usize)] = &{
    let mut seqs = [(1, 2); 26];
    (seqs[3], seqs[9], seqs[25]) = ((17, 2), (600, 2), (0, 2));
    seqs
};
/// Tolerance of an f16 cache. k is computed in f32 on the device and in f64 here, so it may round the other way.
const ROUNDED: f64 = 2e-3;
/// Tolerance of a cache of integers; an element may be one level off.
const A_LEVEL: f64 = 2e-2;

struct Rotated {
    case: Case,
    kind: RopeKind,
    num_pairs: usize,
    norms: Norms,
    temperature: Option<Temperature>,
}

const fn case(heads: [usize; 2], head_dim: usize, kind: RopeKind, num_pairs: usize, norms: bool) -> Rotated {
    let norms = if norms { Norms::Heads } else { Norms::No };
    Rotated { case: super::case(heads, head_dim, 16, SEQS), kind, num_pairs, norms, temperature: None }
}

/// Returns the cases. Pairs fill the head, or only a part of it, or are not a multiple of four. Each KV head has
/// several q heads.
fn cases() -> Vec<Rotated> {
    use RopeKind::{Neox, Norm};
    let f32_cache = |rotated: Rotated| Rotated { case: Case { dtype: KvCacheDtype::F32, ..rotated.case }, ..rotated };
    let int8 = |rotated: Rotated| Rotated { case: Case { dtype: KvCacheDtype::Int8, ..rotated.case }, ..rotated };
    let with_seqs = |seqs, rotated: Rotated| Rotated { case: Case { seqs, ..rotated.case }, ..rotated };
    let gated = |rotated: Rotated| Rotated { case: Case { gated: true, ..rotated.case }, ..rotated };
    let with_sinks = |rotated: Rotated| Rotated { case: Case { sinks: true, ..rotated.case }, ..rotated };
    let windowed = |window, softcap, rotated: Rotated| {
        let case = Case { window: Some(window), softcap, block_size: 32, ..rotated.case };
        Rotated { case, ..rotated }
    };
    vec![
        case([1, 1], 1, Norm, 0, false),
        case([3, 1], 7, Norm, 3, true),
        case([3, 1], 7, Neox, 2, true),
        case([4, 2], 80, Norm, 40, false),
        case([7, 1], 80, Neox, 20, true),
        case([8, 1], 33, Neox, 9, true),
        case([18, 1], 24, Norm, 12, false),
        case([9, 3], 64, Neox, 32, false),
        case([16, 2], 128, Neox, 64, true),
        case([2, 2], 256, Norm, 128, false),
        with_seqs(FEW, case([2, 1], 512, Neox, 256, true)),
        with_seqs(FEW, case([9, 1], 264, Neox, 33, false)),
        windowed(1, None, case([2, 1], 16, Neox, 8, false)),
        windowed(5, None, case([4, 2], 20, Norm, 10, true)),
        windowed(140, Some(2.0), case([6, 3], 48, Neox, 12, false)),
        with_seqs(FEW, case([4, 2], 80, Neox, 40, true)),
        with_seqs(FEW, case([2, 1], 128, Norm, 64, false)),
        with_seqs(LONG, case([8, 2], 64, Neox, 32, true)),
        with_seqs(LONG, case([10, 1], 128, Norm, 64, true)),
        with_seqs(LONG, case([3, 1], 256, Neox, 32, false)),
        with_seqs(MANY, case([8, 8], 64, Neox, 32, false)),
        f32_cache(with_seqs(FEW, case([3, 3], 33, Neox, 16, false))),
        f32_cache(case([3, 1], 7, Neox, 3, true)),
        f32_cache(case([7, 1], 80, Norm, 40, false)),
        f32_cache(windowed(20, None, case([9, 3], 64, Neox, 32, true))),
        with_sinks(case([8, 2], 64, Neox, 32, false)),
        with_sinks(with_seqs(LONG, windowed(140, None, case([8, 1], 64, Neox, 32, false)))),
        gated(case([3, 1], 7, Neox, 2, true)),
        gated(with_seqs(FEW, case([4, 1], 256, Neox, 32, true))),
        gated(f32_cache(Rotated { norms: Norms::Rows, ..case([6, 2], 16, Neox, 4, true) })),
        Rotated { norms: Norms::HeadsLast, ..with_seqs(FEW, case([4, 2], 16, Neox, 8, true)) },
        Rotated { norms: Norms::HeadsAndV, ..with_seqs(FEW, case([4, 2], 64, Neox, 32, true)) },
        f32_cache(Rotated { norms: Norms::HeadsAndV, ..case([3, 1], 33, Neox, 16, true) }),
        f32_cache(Rotated { norms: Norms::Rows, ..case([6, 2], 16, Neox, 4, true) }),
        f32_cache(Rotated { temperature: TEMPERATURE, ..case([4, 2], 16, Norm, 8, false) }),
        int8(case([3, 1], 7, Neox, 2, true)),
        int8(case([9, 3], 64, Neox, 32, false)),
        int8(case([16, 2], 128, Norm, 64, true)),
        int8(case([2, 2], 256, Neox, 128, false)),
        int8(with_seqs(MANY, case([8, 8], 80, Norm, 40, true))),
        int8(Rotated { norms: Norms::HeadsAndV, ..case([4, 2], 64, Neox, 32, true) }),
    ]
}

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("RoPE and attention in one");
    for (seed, case) in tally.part(&cases()) {
        check_case(&loader, case, seed as u64, tally)?;
    }
    Ok(())
}

fn check_case<L: Loader>(
    loader: &impl Fn(usize) -> Result<L>,
    rotated: &Rotated,
    seed: u64,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let mut random = Random(seed);
    let &Rotated { ref case, kind, num_pairs, norms, temperature } = rotated;
    let layout: QkvLayout = case.layout();
    let what = format!("{kind:?} RoPE of {num_pairs} pairs and attention, {layout:?} {:?}", case.dtype);
    tally.begin(&what)?;
    let rows = case.rows(&mut random);
    let (pieces, spec): (Vec<Piece>, KvLayerSpec) = case.pieces(&mut random);
    let rope = RopeSpec { kind, inv_freq: random.values(num_pairs), magnitude: 1.0 };
    let norms = HostNorms::random(norms, layout, &mut random);
    let rotation = HostRotation { rope, norms, temperature };

    let mut expected_rows: Vec<f64> = rows.iter().map(|&x| f64::from(x)).collect();
    let mut at = expected_rows.chunks_mut(layout.cols());
    for piece in &pieces {
        for (position, row) in at.by_ref().take(piece.cached + piece.new).enumerate() {
            rotation.apply(row, layout, position);
        }
    }
    let expected_rows: Vec<f32> = expected_rows.iter().map(|&x| x as f32).collect();

    let sinks = case.sinks();
    let biases = case.biases();
    let (sinks, biases) = (sinks.as_deref(), biases.as_deref());
    let mut rig = AttentionRig::with_rotation(loader(1100)?, layout, spec, &rows, &rotation, sinks, biases)?;
    for piece in &pieces {
        rig.store(&batch_of(
            &[Piece { cached: 0, new: piece.cached, ..piece.clone() }],
            case.block_size,
            GroupKind::Full,
        ))?;
    }
    for step in 0..2 {
        let now: Vec<_> = pieces.iter().map(|p| Piece { cached: p.cached + step, new: 1, ..p.clone() }).collect();
        let got = rig.rope_step(case.scoring(), &now)?;
        let expected = expected(case, &now, &expected_rows);
        let absolute = match case.dtype {
            KvCacheDtype::F16 => ROUNDED,
            KvCacheDtype::F32 => 1e-5,
            KvCacheDtype::Int8 | KvCacheDtype::Int4 => A_LEVEL,
        };
        tally.close(&format!("{what}, step {step}"), &got, &expected, 1e-5, absolute);
    }
    Ok(())
}
