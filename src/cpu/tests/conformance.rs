//! The conformance cases on the instruction sets of this CPU, and tests specific to the CPU.

use rocmforge_backend::{
    Attention, Backend, CopyBlocks, GatherRows, KvLayerSpec, Loader, Norm, NormRows, Ops, QkvLayout, Scoring,
};
use rocmforge_config::KvCacheDtype;
use rocmforge_conformance as conformance;
use rocmforge_conformance::{
    Accuracy, AttentionRig, Extent, Piece, Random, batch_of, kv_layer, rows_batch, vector, within,
};
use rocmforge_core::batch::{Batch, BlockCopy, ChosenToken, GroupKind, NULL_BLOCK};
use rocmforge_core::{Error, Result};
use rocmforge_cpu::{CpuLoader, CpuStep, Isa};

fn loader(rows: usize) -> CpuLoader {
    CpuLoader::new(2, rows).unwrap()
}

fn kv_spec(num_blocks: usize, block_size: usize) -> KvLayerSpec {
    let dtype = KvCacheDtype::F16;
    KvLayerSpec {
        kind: GroupKind::Full,
        skips_first: false,
        num_blocks,
        block_size,
        num_kv_heads: 3,
        head_dim: 64,
        latent: None,
        dtype,
    }
}

/// M4 (decode equals prefill), M12 (group sizes 1, 2, 4, 7, 8), K14 (only the table's blocks are read: all others are
/// NaN), G20 (fully masked rows), and every other op, against f64.
#[test]
fn conformance_on_the_best_instruction_set() {
    // One thread splits nothing.
    for threads in [1, 3] {
        let loader = |rows| CpuLoader::new(threads, rows);
        conformance::pass(Extent::Quick, |tally| conformance::check_all(loader, Accuracy::CPU, tally));
        conformance::pass(Extent::Quick, |tally| conformance::check_invariance(loader, tally));
    }
}

/// Tests that take too long for every commit, which compare the instruction sets bit for bit.
mod deep {
    use super::*;

    #[test]
    fn conformance_on_every_instruction_set() {
        for isa in Isa::available() {
            let loader = |rows| Ok(loader(rows).with_isa(isa));
            conformance::pass(Extent::Full, |tally| conformance::check_all(loader, Accuracy::CPU, tally));
            conformance::pass(Extent::Full, |tally| conformance::check_invariance(loader, tally));
        }
    }
}

const LAYOUT: QkvLayout =
    QkvLayout { num_heads: 6, num_kv_heads: 2, head_dim: 72, value_dim: 72, gated: false, has_kv: true };
const SCORING: Scoring = Scoring::scaled(0.5);

fn rig(isa: Isa, tokens: usize) -> (AttentionRig<CpuLoader>, Piece) {
    let rows = Random(3).values(tokens * LAYOUT.cols());
    rig_of(isa, &rows, KvCacheDtype::F16)
}

/// Returns a rig whose cache has the type `dtype`. `rows` holds q, k and v of the tokens.
fn rig_of(isa: Isa, rows: &[f32], dtype: KvCacheDtype) -> (AttentionRig<CpuLoader>, Piece) {
    let tokens = rows.len() / LAYOUT.cols();
    let num_blocks = tokens.div_ceil(16) + 1;
    let kind = GroupKind::Full;
    let spec = KvLayerSpec {
        kind,
        skips_first: false,
        num_blocks,
        block_size: 16,
        num_kv_heads: 2,
        head_dim: 72,
        latent: None,
        dtype,
    };
    let piece = Piece { first_row: 0, blocks: (1..num_blocks as u32).collect(), cached: 0, new: tokens };
    (AttentionRig::new(loader(tokens).with_isa(isa), LAYOUT, spec, rows).unwrap(), piece)
}

#[test]
fn instruction_sets_agree_on_attention_bit_for_bit() {
    let rows = Random(3).values(200 * LAYOUT.cols());
    for dtype in [KvCacheDtype::F16, KvCacheDtype::Int8, KvCacheDtype::Int4] {
        let run = |isa| {
            let (mut rig, piece) = rig_of(isa, &rows, dtype);
            rig.run(SCORING, &[piece]).unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let expected = run(Isa::SCALAR);
        for isa in Isa::available() {
            assert!(run(isa) == expected, "{isa:?} differs from scalar over {dtype:?}");
        }
    }
}

/// Returns V of a token, `[kv_cols]`, as attention reads it from a cache of this type.
fn through_cache(isa: Isa, dtype: KvCacheDtype, v: &[f32]) -> Vec<f32> {
    let mut row = vec![0.5; LAYOUT.cols() - LAYOUT.k_cols()];
    row.extend_from_slice(v);
    let (mut rig, piece) = rig_of(isa, &row, dtype);
    let out = rig.run(SCORING, &[piece]).unwrap();
    let group = LAYOUT.num_heads / LAYOUT.num_kv_heads;
    out.chunks(LAYOUT.head_dim).step_by(group).flatten().copied().collect()
}

/// A token that attends only to itself returns its V as stored in the cache. The error is at most half of one of 127
/// levels. Zeros and the largest elements are exact, the smallest numbers survive, and NaN stays NaN.
#[test]
fn int8_keeps_values_to_half_a_level() {
    let (kv_cols, head_dim) = (LAYOUT.k_cols(), LAYOUT.head_dim);
    let values = Random(5).values(kv_cols);
    for isa in Isa::available() {
        let through = |v: &[f32]| through_cache(isa, KvCacheDtype::Int8, v);
        for factor in [1e-30, 1e-5, 1.0, 1e4, 1e30] {
            let v: Vec<f32> = values.iter().map(|x| x * factor).collect();
            for (v, got) in v.chunks(head_dim).zip(through(&v).chunks(head_dim)) {
                let largest = v.iter().fold(0.0f32, |top, x| top.max(x.abs()));
                for (x, got) in v.iter().zip(got) {
                    let bound = if x.abs() == largest { 1e-6 } else { 0.5 / 127.0 + 1e-6 };
                    assert!((x - got).abs() <= bound * largest, "{isa:?}: {x} became {got}");
                }
            }
        }
        assert_eq!(through(&vec![0.0; kv_cols]), vec![0.0; kv_cols]);
        for broken in [f32::NAN, f32::INFINITY] {
            let mut v = values.clone();
            v[head_dim - 1] = broken;
            let got = through(&v);
            assert!(!got[head_dim - 1].is_finite(), "{isa:?}: {broken} became {}", got[head_dim - 1]);
            assert!(got[head_dim..].iter().all(|x| x.is_finite()), "{isa:?}: {broken} reached another head");
        }
    }
}

/// A token that attends only to itself returns its V as stored in the cache. The error is at most half of the distance
/// of two of 16 levels, and the rounding of the scale. Equal elements are exact in f16. A NaN breaks its block alone.
#[test]
fn int4_keeps_values_to_half_a_level() {
    let (kv_cols, head_dim) = (LAYOUT.k_cols(), LAYOUT.head_dim);
    let values = Random(5).values(kv_cols);
    for isa in Isa::available() {
        let through = |v: &[f32]| through_cache(isa, KvCacheDtype::Int4, v);
        for (factor, offset) in [(1e-3, 0.0), (1.0, 0.0), (1.0, 7.0), (1e4, 0.0)] {
            let v: Vec<f32> = values.iter().map(|x| x * factor + offset).collect();
            for (v, got) in v.chunks(head_dim).zip(through(&v).chunks(head_dim)) {
                for (v, got) in v.chunks(32).zip(got.chunks(32)) {
                    let top = v.iter().copied().fold(f32::MIN, f32::max);
                    let low = v.iter().copied().fold(f32::MAX, f32::min);
                    let bound = 0.5 / 15.0 * (top - low) + 1e-3 * top.abs().max(low.abs());
                    for (x, got) in v.iter().zip(got) {
                        assert!((x - got).abs() <= bound, "{isa:?}: {x} became {got}, of {low} to {top}");
                    }
                }
            }
        }
        for equal in [0.0, 1.5, -3.0] {
            assert_eq!(through(&vec![equal; kv_cols]), vec![equal; kv_cols]);
        }
        for broken in [f32::NAN, f32::INFINITY] {
            let mut v = values.clone();
            v[head_dim - 1] = broken;
            let got = through(&v);
            assert!(!got[head_dim - 1].is_finite(), "{isa:?}: {broken} became {}", got[head_dim - 1]);
            assert!(got[..64].iter().chain(&got[head_dim..]).all(|x| x.is_finite()), "{isa:?}: {broken} spread");
        }
    }
}

/// M14: the scratch of attention grows with the length of the prompt, not with heads × length².
#[test]
fn attention_scratch_is_linear_in_the_prompt() {
    let held = |tokens| {
        let (mut rig, piece) = rig(Isa::detect(), tokens);
        let before = rig.held();
        rig.run(SCORING, &[piece]).unwrap();
        assert_eq!(rig.held(), before);
        rig.backend.work_list_bytes()
    };
    let (short, long) = (held(500), held(2000));
    assert!(short > 0 && long <= 8 * short && long <= 64 * 2000, "{short} then {long} bytes");
}

#[test]
fn block_sizes_other_than_whole_tiles_are_errors() {
    for block_size in [0, 1, 15, 24] {
        let error = kv_layer(&mut loader(1), kv_spec(1, block_size)).unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { what: "block_size", .. }), "{error}");
    }
}

#[test]
fn a_pool_larger_than_memory_is_out_of_memory() {
    for num_blocks in [1 << 40, usize::MAX / 2] {
        let error = kv_layer(&mut loader(1), kv_spec(num_blocks, 16)).unwrap_err();
        let Error::OutOfMemory { requested, available, .. } = error else { panic!("{error}") };
        assert!(requested > available);
    }
    assert!(matches!(loader(1).alloc_buffer(usize::MAX, 2), Err(Error::OutOfMemory { .. })));
    assert!(matches!(loader(1).alloc_buffer(1 << 50, 2), Err(Error::OutOfMemory { .. })));
}

/// Memory that the loader has allocated counts as taken, even if nobody has touched it yet.
#[test]
fn untouched_memory_is_not_available() {
    let mut loader = loader(1);
    let before = loader.available_memory().unwrap();
    loader.alloc_buffer(1 << 15, 1 << 15).unwrap();
    let after = loader.available_memory().unwrap();
    // Other processes change the figure too, but hardly by 3 of the 4 GiB.
    assert!(after <= before - before.min(4 << 30) / 4, "{before} before, {after} after");
}

/// S26: every op refuses contradictory sizes, for each of its arguments.
#[test]
fn arguments_that_contradict_each_other_are_refused() {
    conformance::pass(Extent::Full, |tally| conformance::arguments::check(|rows| Ok(loader(rows)), tally));
}

/// Runs attention alone over the contents of the rig's cache.
fn attention(rig: &mut AttentionRig<CpuLoader>, batch: &Batch, group: usize) -> Result<()> {
    let AttentionRig { backend, qkv, kv, out, .. } = rig;
    backend.step(batch, &mut |step: &mut CpuStep<'_>| {
        step.attention(Attention { qkv, layout: LAYOUT, scoring: SCORING, sinks: None, biases: None, group, kv, out })
    })
}

#[test]
fn bad_tables_are_errors_not_panics() {
    let (mut rig, piece) = rig(Isa::detect(), 40);
    rig.run(SCORING, std::slice::from_ref(&piece)).unwrap();
    let good = batch_of(std::slice::from_ref(&piece), 16, GroupKind::Full);

    let mut short = good.clone();
    short.groups[0].block_tables.pop();
    short.groups[0].cu_blocks[1] -= 1;
    let mut null = good.clone();
    null.groups[0].block_tables[1] = NULL_BLOCK;
    let mut outside = good.clone();
    outside.groups[0].block_tables[2] = 1000;
    for bad in [&short, &null, &outside] {
        assert!(matches!(attention(&mut rig, bad, 0), Err(Error::Internal { .. })));
    }
    attention(&mut rig, &good, 0).unwrap();
    assert!(attention(&mut rig, &good, 1).is_err());

    let mut slot = good.clone();
    slot.groups[0].slot_mapping[3] = 4 * 16;
    assert!(matches!(rig.store(&slot), Err(Error::Internal { .. })));
}

#[test]
fn inconsistent_batches_are_refused() {
    let (mut rig, piece) = rig(Isa::detect(), 20);
    let good = batch_of(&[piece], 16, GroupKind::Full);
    let mut bad = vec![good.clone(); 7];
    bad[0].positions.pop();
    bad[1].cu_seqlens_q[1] = 19;
    bad[2].positions[5] = 3;
    bad[3].context_lens[0] = 19;
    bad[4].groups[0].slot_mapping.pop();
    bad[5].logits_indices.push(20);
    bad[6].chosen.push(ChosenToken { index: 0, row: 0 });
    let mut step = |batch| rig.backend.step(batch, &mut |_: &mut CpuStep<'_>| Ok(()));
    step(&good).unwrap();
    for bad in &bad {
        assert!(matches!(step(bad), Err(Error::Internal { .. })));
    }
}

/// K22: the copy of a block has the contents of the block, and copies of other groups change nothing.
#[test]
fn copied_blocks_attend_alike() {
    let (mut rig, piece) = rig(Isa::detect(), 30);
    let expected = rig.run(SCORING, std::slice::from_ref(&piece)).unwrap();
    let moved = Piece { blocks: vec![0, 2], ..piece.clone() };
    let mut batch = batch_of(&[moved], 16, GroupKind::Full);
    batch.block_copies = vec![BlockCopy { group: 0, src: 1, dst: 0 }, BlockCopy { group: 1, src: 0, dst: 2 }];
    let copy = |rig: &mut AttentionRig<CpuLoader>, batch: &Batch| {
        let AttentionRig { backend, kv, .. } = rig;
        backend.step(batch, &mut |step: &mut CpuStep<'_>| step.copy_blocks(CopyBlocks { group: 0, kv }))
    };
    copy(&mut rig, &batch).unwrap();
    attention(&mut rig, &batch, 0).unwrap();
    assert_eq!(rig.backend.to_host(&rig.out, 30, LAYOUT.q_cols()).unwrap(), expected);
    batch.block_copies[0].dst = 99;
    assert!(copy(&mut rig, &batch).is_err());
}

#[test]
fn buffers_too_small_are_errors() {
    let mut loader = loader(4);
    let weight = vector(&mut loader, &[1.0; 10]).unwrap();
    let [x, mut out] = [(); 2].map(|()| loader.alloc_buffer(3, 10).unwrap());
    let mut backend = loader.finish().unwrap();
    let norm = Norm::rms(&weight, 1e-5);
    let mut norm =
        |rows| within(&mut backend, rows, |step| step.norm_rows(NormRows { x: &x, norm, rows, out: &mut out }));
    norm(3).unwrap();
    assert!(matches!(norm(4), Err(Error::Internal { .. })));
    assert!(backend.to_host(&out, usize::MAX, 10).is_err());
    let beyond = Batch { logits_indices: vec![3], ..rows_batch(vec![0; 4]) };
    let gathered = backend
        .step(&beyond, &mut |step: &mut CpuStep<'_>| step.gather_rows(GatherRows { x: &x, cols: 10, out: &mut out }));
    assert!(matches!(gathered, Err(Error::Internal { .. })));
    assert!(backend.describe().contains(Isa::detect().name()));
}
