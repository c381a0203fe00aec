//! Batch invariance, bit for bit: attention of a token alone, in a chunk, and in a mixed batch; the other ops row by row.

use super::attention::CASES;
use super::{AttentionRig, Piece, Random, experts, fill, matrix, vector};
use crate::backend::{Activation, Backend, Loader};

pub(super) fn check<L: Loader>(loader: impl Fn(usize) -> L) {
    attention(&loader);
    experts::check_invariance(&loader);
    rows_alone(loader(200));
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Chunked prefill equals whole prefill equals decode, alone or with others; the pool around them is NaN.
fn attention<L: Loader>(loader: impl Fn(usize) -> L) {
    for (seed, case) in CASES.iter().enumerate() {
        let mut random = Random(seed as u64);
        let rows = case.rows(&mut random);
        let (pieces, spec) = case.pieces(&mut random);
        let together = AttentionRig::new(loader(512), case.layout(), spec, &rows).run(case.args(), &pieces);
        for chunk in [1, 13] {
            let mut rig = AttentionRig::new(loader(512), case.layout(), spec, &rows);
            let mut alone = Vec::new();
            for piece in &pieces {
                let end = piece.cached + piece.new;
                for start in (0..end).step_by(chunk) {
                    let part = Piece { cached: start, new: chunk.min(end - start), ..piece.clone() };
                    let out = rig.step(case.args(), &[part]);
                    let wanted = piece.cached.saturating_sub(start) * case.layout().q_cols();
                    alone.extend_from_slice(out.get(wanted..).unwrap_or(&[]));
                }
            }
            assert_eq!(bits(&alone), bits(&together), "attention {seed} in chunks of {chunk}");
        }
    }
}

fn rows_alone<L: Loader>(mut loader: L) {
    let (rows, cols) = (150, 90);
    let mut random = Random(1);
    let x: Vec<f32> = random.values(rows * cols);
    let table = matrix(&mut loader, &x, cols);
    let last_row = matrix(&mut loader, &x[(rows - 1) * cols..], cols);
    let weight = vector(&mut loader, &random.values(cols));
    let [mut input, mut out] = [(); 2].map(|()| loader.alloc_buffer(rows, cols).unwrap());
    let mut backend = loader.finish().unwrap();
    let mut last_of = |table, rows: usize| {
        fill(&mut backend, table, rows, &mut input);
        backend.rms_norm(&input, &weight, 1e-5, rows, &mut out).unwrap();
        let norm = bits(&backend.to_host(&out, rows, cols).unwrap()[(rows - 1) * cols..]);
        backend.gated_activation(&input, Activation::Silu, rows, cols / 2, &mut out).unwrap();
        let gated = bits(&backend.to_host(&out, rows, cols / 2).unwrap()[(rows - 1) * cols / 2..]);
        (norm, gated)
    };
    assert_eq!(last_of(&table, rows), last_of(&last_row, 1));
}
