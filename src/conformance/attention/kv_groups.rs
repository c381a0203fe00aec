//! Layers of two KV groups in one step. Each group has its own block tables, slots, copies, head shape and pool size.

use super::{Case, case, expected};
use crate::Result;
use crate::backend::{
    Attention, Backend, CopyBlocks, Embed, KvLayerSpec, Loader, Ops, RopeAndStore, RopeAngles, Rotation,
};
use crate::batch::{Batch, BlockCopy, GroupKind};
use crate::config::KvCacheDtype;
use crate::{Accuracy, BufferOf, Piece, Random, Tally, batch_of, kv_layer, matrix, no_rope};

/// Prompts, chunks and single tokens together; then single tokens only.
const SEQS: [&[(usize, usize)]; 2] = [&[(0, 33), (40, 1), (17, 20), (0, 1)], &[(40, 1), (3, 1), (90, 1)]];

pub(crate) fn check<L: Loader>(
    loader: impl Fn(usize) -> Result<L>,
    accuracy: Accuracy,
    tally: &mut Tally<'_>,
) -> Result<()> {
    tally.group("layers of two KV groups");
    for (seed, seqs) in SEQS.into_iter().enumerate() {
        let full = case([4, 2], 32, 16, seqs);
        let windowed = Case { window: Some(20), softcap: Some(3.0), ..case([3, 1], 80, 16, seqs) };
        check_cases(loader(256)?, accuracy, seed as u64, [full, windowed], tally)?;
    }
    let full = Case { dtype: KvCacheDtype::Int8, ..case([4, 2], 32, 16, SEQS[0]) };
    let windowed = Case { window: Some(20), dtype: KvCacheDtype::Int8, ..case([3, 1], 80, 16, SEQS[0]) };
    check_cases(loader(256)?, accuracy, SEQS.len() as u64, [full, windowed], tally)
}

/// One layer of a group.
struct Layer<L: Loader> {
    case: Case,
    rows: Vec<f32>,
    pieces: Vec<Piece>,
    spec: KvLayerSpec,
    table: <L::Backend as Backend>::Matrix,
    qkv: BufferOf<L>,
    out: BufferOf<L>,
    kv: <L::Backend as Backend>::KvLayer,
    /// The result of the last step.
    got: Vec<f32>,
}

impl<L: Loader> Layer<L> {
    fn new(loader: &mut L, case: Case, random: &mut Random) -> Result<Self> {
        let (layout, rows) = (case.layout(), case.rows(random));
        let (pieces, spec) = case.pieces(random);
        let most = rows.len() / layout.cols();
        Ok(Self {
            table: matrix(loader, &rows, layout.cols())?,
            qkv: loader.alloc_buffer(most, layout.cols())?,
            out: loader.alloc_buffer(most, layout.out_cols())?,
            kv: kv_layer(loader, spec)?,
            case,
            rows,
            pieces,
            spec,
            got: Vec::new(),
        })
    }
}

/// Returns the step of two layers' pieces, which have the same tokens.
fn batch<L: Loader>(layers: &[Layer<L>; 2], of_step: impl Fn(&Piece) -> Piece, kinds: [GroupKind; 2]) -> Batch {
    let [first, second] = [0, 1].map(|i| {
        let pieces: Vec<Piece> = layers[i].pieces.iter().map(&of_step).filter(|piece| piece.new > 0).collect();
        batch_of(&pieces, layers[i].spec.block_size, kinds[i])
    });
    Batch { groups: first.groups.into_iter().chain(second.groups).collect(), ..first }
}

fn check_cases<L: Loader>(
    mut loader: L,
    accuracy: Accuracy,
    seed: u64,
    [first, second]: [Case; 2],
    tally: &mut Tally<'_>,
) -> Result<()> {
    let what = format!("two KV groups, {seed}");
    tally.begin(&what)?;
    let mut random = Random(seed);
    let mut layers = [Layer::new(&mut loader, first, &mut random)?, Layer::new(&mut loader, second, &mut random)?];
    let rope = loader.upload_rope(&no_rope())?;
    let mut angles = loader.alloc_buffer(256, 2)?;
    let mut backend = loader.finish()?;
    let kinds = [0, 1].map(|i| layers[i].spec.kind);
    let mut run = |layers: &mut [Layer<L>; 2], batch: &Batch| -> Result<()> {
        backend.step(batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
            step.rope_angles(RopeAngles { rope: &rope, out: &mut angles })?;
            for (group, layer) in layers.iter_mut().enumerate() {
                let Layer { case, table, qkv, out, kv, .. } = layer;
                let (layout, scoring) = (case.layout(), case.scoring());
                step.copy_blocks(CopyBlocks { group, kv: &mut *kv })?;
                step.embed(Embed { table, scale: 1.0, out: &mut *qkv })?;
                let rotation = Rotation { norms: None, rope: &rope, angles: &angles, temperature: None };
                step.rope_and_store_kv(RopeAndStore { qkv: &mut *qkv, layout, rotation, group, kv: &mut *kv })?;
                step.attention(Attention {
                    qkv: &*qkv,
                    layout,
                    scoring,
                    sinks: None,
                    biases: None,
                    group,
                    kv: &*kv,
                    out: &mut *out,
                })?;
            }
            Ok(())
        })?;
        for layer in layers {
            let cols = layer.case.layout().out_cols();
            layer.got = backend.to_host(&layer.out, batch.num_tokens(), cols)?.to_vec();
        }
        Ok(())
    };
    let mut judge = |what: &str, layers: &[Layer<L>; 2]| {
        for Layer { case, pieces, rows, got, .. } in layers {
            let what = format!("{what}, window {:?}", case.window);
            tally.close(&what, got, &expected(case, pieces, rows), 1e-5, case.tolerance(accuracy));
        }
    };

    // The first batch stores the cached tokens of the sequences; the second is the step.
    let before = batch(&layers, |piece| Piece { cached: 0, new: piece.cached, ..piece.clone() }, [GroupKind::Full; 2]);
    run(&mut layers, &before)?;
    let now = batch(&layers, Piece::clone, kinds);
    run(&mut layers, &now)?;
    judge(&what, &layers);

    // Repeat the step with a block of each group moved, which the step itself copies.
    let mut block_copies = Vec::new();
    for (group, Layer { pieces, spec, .. }) in (0..).zip(&mut layers) {
        let is_free = |block: &u32| pieces.iter().all(|piece| !piece.blocks.contains(block));
        let free = (0..spec.num_blocks as u32).find(is_free);
        let piece = pieces.iter_mut().find(|piece| piece.cached == 40);
        if let (Some(dst), Some(piece)) = (free, piece) {
            let src = std::mem::replace(&mut piece.blocks[40 / spec.block_size], dst);
            block_copies.push(BlockCopy { group, src, dst });
        }
    }
    let moved = Batch { block_copies, ..batch(&layers, Piece::clone, kinds) };
    run(&mut layers, &moved)?;
    judge(&format!("{what}, blocks copied"), &layers);
    Ok(())
}
