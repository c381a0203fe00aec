//! Captured graphs are replayed only for batches that their ops would have accepted.

use crate::backend::{Backend, KvLayerSpec, QkvLayout, RopeKind, RopeSpec, Scoring, StepLimits};
use crate::batch::{Batch, GroupKind, NULL_BLOCK};
use crate::capture::graphs;
use crate::config::{GpuOptions, KvCacheDtype, Platform};
use crate::conformance::{AttentionRig, Piece, Random, batch_of};
use crate::report::describe::decode_steps;
use crate::testing::devices::{self, CPU_TARGETS, Call, FAULTY_TARGETS, Live, WEAK_TARGETS};
use crate::{Device, DeviceProperties, GpuLoader, graph_capture};
use crate::{Error, Result};

const LAYOUT: QkvLayout =
    QkvLayout { num_heads: 2, num_kv_heads: 1, head_dim: 16, value_dim: 16, gated: false, has_kv: true };
const WINDOW: GroupKind = GroupKind::Sliding { window: 20 };
const CACHE: KvLayerSpec = KvLayerSpec {
    kind: WINDOW,
    skips_first: false,
    num_blocks: 8,
    block_size: 16,
    num_kv_heads: 1,
    head_dim: 16,
    latent: None,
    dtype: KvCacheDtype::F32,
};
/// Rows of the embedding table, not counting a block of NaN.
const TOKENS: usize = 64;

/// A change that makes a batch invalid.
type Spoil = fn(&mut Batch);

fn rope() -> RopeSpec {
    RopeSpec { kind: RopeKind::Neox, inv_freq: vec![1.0], magnitude: 1.0 }
}

const SCORING: Scoring = Scoring::scaled(1.0);

/// Runs a step like the decoder. Returns whether its ops were called or replayed, and attention's output.
fn step(rig: &mut AttentionRig<GpuLoader>, batch: &Batch) -> Result<(Came, Vec<f32>)> {
    let came = if rig.rope_attention(SCORING, Some(batch))? == 0 { Came::Repeated } else { Came::Called };
    Ok((came, rig.backend.to_host(&rig.out, batch.num_tokens(), LAYOUT.q_cols())?.to_vec()))
}

/// How the ops of a step were executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    Called,
    Repeated,
}

/// Captures the device's steps, like the decoder.
fn warm_up(rig: &mut AttentionRig<GpuLoader>) -> Result<()> {
    rig.rope_attention(SCORING, None).map(drop)
}

/// Graph capture may be switched off: the steps then run op by op with the same results.
#[test]
fn without_captures() {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let outputs = [Some(true), Some(false)].map(|graphs| {
        let device = (device.clone(), GpuOptions { graphs, ..options.clone() });
        let rows = Random(1).values(TOKENS * LAYOUT.cols());
        let mut rig = AttentionRig::with_rotation(
            devices::loader(&device, TOKENS),
            LAYOUT,
            CACHE,
            &rows,
            &rope().into(),
            None,
            None,
        )
        .unwrap();
        warm_up(&mut rig).unwrap();
        let pieces = [3, 4, 5].map(|block| Piece { first_row: 0, blocks: vec![block], cached: 5, new: 1 });
        for piece in &pieces {
            rig.store(&batch_of(
                &[Piece { cached: 0, new: piece.cached, ..piece.clone() }],
                CACHE.block_size,
                GroupKind::Full,
            ))
            .unwrap();
        }
        let mut batch = batch_of(&pieces, CACHE.block_size, WINDOW);
        batch.logits_indices = vec![0, 1, 2];
        let (first, expected) = step(&mut rig, &batch).unwrap();
        let (second, output) = step(&mut rig, &batch).unwrap();
        let came = if graphs == Some(true) { Came::Repeated } else { Came::Called };
        assert_eq!((first, second), (came, came));
        assert_eq!(output, expected);
        output
    });
    assert_eq!(outputs[0], outputs[1]);
}

/// Steps are captured by default except on HIP 7.2, and the user's setting overrides both.
#[test]
fn when_steps_are_captured() {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    let says = |platform, driver_version, graphs| {
        let properties = DeviceProperties { platform, driver_version, ..device.properties().clone() };
        decode_steps(&graphs::wanted(&GpuOptions { graphs, ..options.clone() }, &properties))
    };
    let captured = "decode steps: captured and replayed";
    for version in [(6, 0), (7, 1), (7, 3), (7, 13), (10, 2)] {
        assert_eq!(says(Platform::Amd, version, None), captured, "{version:?}");
    }
    assert_eq!(says(Platform::Nvidia, (7, 2), None), captured);
    assert_eq!(says(Platform::Amd, (7, 2), Some(true)), captured);
    let faulty = says(Platform::Amd, (7, 2), None);
    assert!(
        faulty.contains("op by op")
            && faulty.contains("HIP 7.2")
            && faulty.contains("graphs=True or ROCMFORGE_GRAPHS=1"),
        "{faulty}"
    );
    let forbidden = says(Platform::Nvidia, (13, 0), Some(false));
    assert!(forbidden.contains("op by op") && forbidden.contains("graphs=False or ROCMFORGE_GRAPHS=0"), "{forbidden}");
}

/// G25: a slot, a block or a token out of range is refused by a replayed step, as by the step that was captured. The
/// next valid batch is served.
#[test]
fn a_repeated_step_checks_its_batch() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    let rows = Random(1).values(TOKENS * LAYOUT.cols());
    let mut rig =
        AttentionRig::with_rotation(devices::loader(&device, TOKENS), LAYOUT, CACHE, &rows, &rope().into(), None, None)
            .unwrap();
    warm_up(&mut rig).unwrap();
    let short = Piece { first_row: 0, blocks: vec![3], cached: 5, new: 1 };
    // The window has already passed its first block.
    let long = Piece { first_row: 16, blocks: vec![6, 1, 4], cached: 40, new: 1 };
    for piece in [&short, &long] {
        rig.store(&batch_of(
            &[Piece { cached: 0, new: piece.cached, ..piece.clone() }],
            CACHE.block_size,
            GroupKind::Full,
        ))
        .unwrap();
    }
    let mut good = batch_of(&[short, long], CACHE.block_size, WINDOW);
    good.logits_indices = vec![0, 1];
    assert_eq!(good.groups[0].block_tables, [3, NULL_BLOCK, 1, 4]);

    let (plan, expected) = step(&mut rig, &good).unwrap();
    assert_eq!(plan, Came::Repeated);
    assert_eq!(step(&mut rig, &good).unwrap(), (Came::Repeated, expected.clone()));

    let bad: [(&str, Spoil); 5] = [
        ("KV slot 128", |batch| batch.groups[0].slot_mapping[1] = (CACHE.num_blocks * CACHE.block_size) as u32),
        ("block 8 is outside", |batch| batch.groups[0].block_tables[3] = CACHE.num_blocks as u32),
        ("null block", |batch| batch.groups[0].block_tables[2] = NULL_BLOCK),
        ("a block table of 2", |batch| {
            batch.groups[0].block_tables.truncate(3);
            batch.groups[0].cu_blocks[2] = 3;
        }),
        ("token id", |batch| batch.token_ids[0] = (TOKENS + CACHE.block_size) as u32),
    ];
    for (problem, spoil) in bad {
        let mut batch = good.clone();
        spoil(&mut batch);
        let error = step(&mut rig, &batch).unwrap_err();
        assert!(matches!(error, Error::Internal { .. } | Error::InvalidRequest { .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
        assert_eq!(step(&mut rig, &good).unwrap(), (Came::Repeated, expected.clone()));
    }
}

/// Steps are captured once and replayed with other sequences in other orders. Each gives the same result as op by op.
/// The device never invalidates its scalar cache for the kernels of a graph.
pub(super) fn check_repetitions(target: &str) {
    let Some((device, options)) = devices::open(target) else { return };
    let outputs = [Some(false), Some(true)].map(|graphs| {
        let device = (device.clone(), GpuOptions { graphs, ..options.clone() });
        let rows = Random(1).values(TOKENS * LAYOUT.cols());
        let mut rig = AttentionRig::with_rotation(
            devices::loader(&device, TOKENS),
            LAYOUT,
            CACHE,
            &rows,
            &rope().into(),
            None,
            None,
        )
        .unwrap();
        warm_up(&mut rig).unwrap();
        let piece = |first_row, blocks: &[u32], cached| Piece { first_row, blocks: blocks.to_vec(), cached, new: 1 };
        let pieces = [piece(0, &[3], 5), piece(16, &[6, 1, 4], 40), piece(7, &[0, 7], 17)];
        for piece in &pieces {
            rig.store(&batch_of(
                &[Piece { cached: 0, new: piece.cached, ..piece.clone() }],
                CACHE.block_size,
                GroupKind::Full,
            ))
            .unwrap();
        }
        let steps = [[0, 1, 2], [2, 0, 1], [1, 2, 0]].into_iter().enumerate();
        let steps = steps.map(|(number, order)| {
            let pieces = order.map(|i| Piece { cached: pieces[i].cached + number, ..pieces[i].clone() });
            let mut batch = batch_of(&pieces, CACHE.block_size, WINDOW);
            batch.logits_indices = vec![0, 1, 2];
            step(&mut rig, &batch).unwrap()
        });
        let (plans, outputs): (Vec<_>, Vec<_>) = steps.unzip();
        let repeated = plans.iter().filter(|&&plan| plan == Came::Repeated).count();
        assert_eq!(repeated, if graphs == Some(true) { 3 } else { 0 }, "{target}");
        outputs
    });
    assert_eq!(outputs[0], outputs[1], "{target}");
    assert_eq!(device.allocated_bytes(), 0);
}

#[test]
fn repeated_steps_read_their_own_numbers_on_the_cpu() {
    check_repetitions(CPU_TARGETS[0]);
}

#[test]
fn repeated_steps_read_their_own_numbers_on_gfx1100() {
    check_repetitions(WEAK_TARGETS[2]);
}

/// Loads a rig with the load-time self-test.
fn load_tested(device: &Device, options: &GpuOptions) -> Result<AttentionRig<GpuLoader>> {
    let limits =
        StepLimits { tokens: TOKENS, seqs: TOKENS, logits_rows: TOKENS, groups: 1, table_blocks: 64, state_writes: 0 };
    let loader = GpuLoader::new(device.clone(), &GpuOptions { self_test: true, ..options.clone() }, limits)?;
    let rows = Random(1).values(TOKENS * LAYOUT.cols());
    let mut rig = AttentionRig::with_rotation(loader, LAYOUT, CACHE, &rows, &rope().into(), None, None)?;
    warm_up(&mut rig)?;
    Ok(rig)
}

/// Runs two steps of three sequences. Returns how the second was executed, and its output.
fn two_steps(rig: &mut AttentionRig<GpuLoader>) -> (Came, Vec<f32>) {
    let pieces = [3, 4, 5].map(|block| Piece { first_row: 0, blocks: vec![block], cached: 0, new: 1 });
    let mut batch = batch_of(&pieces, CACHE.block_size, WINDOW);
    batch.logits_indices = vec![0, 1, 2];
    step(rig, &batch).unwrap();
    step(rig, &batch).unwrap()
}

/// A driver whose graphs read old numbers is detected at load. Steps then run op by op with right results, and the
/// reason is reported.
#[test]
fn graphs_that_read_old_numbers_are_not_used() {
    let Some((device, options)) = devices::open(FAULTY_TARGETS[3]) else { return };
    let mut right = load_tested(&device, &options).unwrap();
    let described = right.backend.describe();
    assert!(described.contains("decode steps: captured"), "{described}");
    let (plan, expected) = two_steps(&mut right);
    assert_eq!(plan, Came::Repeated);
    assert_eq!(
        graph_capture(&device, &GpuOptions { self_test: true, ..options.clone() }),
        "decode steps: captured and replayed"
    );

    devices::late_graphs(&options, true);
    let mut rig = load_tested(&device, &options).unwrap();
    let doctor = graph_capture(&device, &GpuOptions { self_test: true, ..options.clone() });
    for said in [rig.backend.describe(), doctor] {
        assert!(said.contains("op by op") && said.contains("read old numbers (kernel 1 of 300"), "{said}");
    }
    assert_eq!(two_steps(&mut rig), (Came::Called, expected));
    devices::late_graphs(&options, false);
    drop((right, rig));
    assert_eq!(device.allocated_bytes(), 0);
}

/// A scalar cache that keeps old numbers in a graph is detected, too: it serves values that are the same for all lanes.
#[test]
fn graphs_with_an_old_scalar_cache_are_not_used() {
    check_old_scalar_cache(WEAK_TARGETS[2]);
}

pub(super) fn check_old_scalar_cache(target: &str) {
    let Some((device, options)) = devices::open(target) else { return };
    let described = load_tested(&device, &options).unwrap().backend.describe();
    assert!(described.contains("op by op") && described.contains("by plain loads"), "{described}");
    assert_eq!(device.allocated_bytes(), 0);
}

/// If any call of the graph test or of the captures fails, the load continues without graphs. A lost device ends the
/// load.
#[test]
fn a_test_of_graphs_that_fails_fails_no_load() {
    const NOT_SUPPORTED: i32 = 801;
    const LOST: i32 = 700;
    let Some((device, options, faults)) = devices::open_faulty(CPU_TARGETS[0]) else { return };
    let calls = [Call::BeginCapture, Call::EndCapture, Call::InstantiateGraph, Call::LaunchGraph];
    for (call, nth) in calls.into_iter().flat_map(|call| [(call, 0), (call, 2)]) {
        faults.fail(call, nth, NOT_SUPPORTED);
        let mut rig = load_tested(&device, &options).unwrap();
        assert!(!faults.disarm(), "{call:?}");
        let described = rig.backend.describe();
        assert!(described.contains("op by op") && described.contains("failed on purpose"), "{described}");
        assert_eq!(two_steps(&mut rig).0, Came::Called);
        drop(rig);
        assert_eq!(faults.live(), Live::default(), "{call:?}");
    }
    faults.fail(Call::LaunchGraph, 0, LOST);
    assert!(matches!(load_tested(&device, &options), Err(Error::EngineDead { .. })));
    assert_eq!(faults.live(), Live::default());
}

/// Without captures, kernels launched one by one are tested, and a failure leaks nothing.
#[test]
fn kernels_by_themselves_are_tested_too() {
    const NOT_SUPPORTED: i32 = 801;
    let Some((device, options, faults)) = devices::open_faulty(CPU_TARGETS[1]) else { return };
    let options = GpuOptions { graphs: Some(false), ..options };
    let launches = |self_test| {
        let before = faults.calls(Call::Launch);
        let described = graph_capture(&device, &GpuOptions { self_test, ..options.clone() });
        assert!(described.contains("op by op") && described.contains("switched off"), "{described}");
        faults.calls(Call::Launch) - before
    };
    // A chain has 300 links after the copy of its numbers.
    assert_eq!((launches(false), launches(true)), (0, 4 * 301));
    faults.fail(Call::Launch, 700, NOT_SUPPORTED);
    let Err(error) = load_tested(&device, &options) else { panic!("a failed launch passed") };
    assert!(error.to_string().contains("failed on purpose"), "{error}");
    assert_eq!(faults.live(), Live::default());
}
