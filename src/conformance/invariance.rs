//! Batch invariance, bit for bit: attention of a token alone, in a chunk and in a mixed batch, and the other ops row by
//! row.

pub mod splits;

use super::attention::latent;
use super::attention::{ALIBI, BIASES, BIDIRECTIONAL, CASES, INT4, INT8};
use super::{Piece, Random, Tally, experts, fill, matrix, states, two_buffers, vector, within};
use crate::Result;
use crate::backend::{Activation, Backend, GatedActivation, Loader, Norm, NormRows, Ops};

pub(super) fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("bits alone and together");
    attention(&loader, tally)?;
    whole_prompts(&loader, tally)?;
    experts::check_invariance(&loader, tally)?;
    latent::check_invariance(&loader, tally)?;
    states::check_invariance(&loader, tally)?;
    rows_alone(loader(200)?, tally)
}

/// Chunked prefill equals whole prefill equals decode, alone or with other sequences. Unused parts of the pool are NaN.
fn attention<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    let of_integers = INT8.iter().chain(&INT4);
    let causal = of_integers.filter(|case| case.reach.is_none() && L::KV_CACHE_DTYPES.contains(&case.dtype));
    let biased = BIASES.iter().filter(|case| case.reach.is_none());
    let cases: Vec<_> = CASES.iter().chain(causal).chain(&ALIBI).chain(biased).collect();
    for (seed, case) in tally.part(&cases) {
        tally.begin(&format!("attention {seed} in one piece and in chunks"))?;
        let mut random = Random(seed as u64);
        let rows = case.rows(&mut random);
        let (pieces, spec) = case.pieces(&mut random);
        let together = case.rig(loader(512)?, spec, &rows)?.run(case.scoring(), &pieces)?;
        for chunk in [1, 13] {
            let mut rig = case.rig(loader(512)?, spec, &rows)?;
            let mut alone = Vec::new();
            for piece in &pieces {
                let end = piece.cached + piece.new;
                for start in (0..end).step_by(chunk) {
                    let part = Piece { cached: start, new: chunk.min(end - start), ..piece.clone() };
                    let out = rig.step(case.scoring(), &[part])?;
                    let wanted = piece.cached.saturating_sub(start) * case.layout().out_cols();
                    alone.extend_from_slice(out.get(wanted..).unwrap_or(&[]));
                }
            }
            tally.same(&format!("attention {seed} in chunks of {chunk}"), &alone, &together);
        }
    }
    Ok(())
}

/// Bidirectional prompts are computed whole. Each gives equal bits alone and with others.
fn whole_prompts<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    let biased = BIASES.iter().filter(|case| case.reach.is_some());
    let cases: Vec<_> = BIDIRECTIONAL.iter().chain(biased).collect();
    for (seed, case) in tally.part(&cases) {
        if case.seqs.iter().any(|&(cached, _)| cached > 0) {
            continue;
        }
        tally.begin(&format!("attention in both directions {seed}, of prompts alone and together"))?;
        let mut random = Random(seed as u64);
        let rows = case.rows(&mut random);
        let (pieces, spec) = case.pieces(&mut random);
        let together = case.rig(loader(512)?, spec, &rows)?.step(case.scoring(), &pieces)?;
        let mut alone = Vec::new();
        for piece in &pieces {
            let mut rig = case.rig(loader(512)?, spec, &rows)?;
            alone.extend(rig.step(case.scoring(), std::slice::from_ref(piece))?);
        }
        tally.same(&format!("attention in both directions {seed}"), &alone, &together);
    }
    Ok(())
}

fn rows_alone<L: Loader>(mut loader: L, tally: &mut Tally<'_>) -> Result<()> {
    tally.begin("norm and gated activation of a row alone and with others")?;
    let (rows, cols) = (150, 90);
    let mut random = Random(1);
    let x: Vec<f32> = random.values(rows * cols);
    let table = matrix(&mut loader, &x, cols)?;
    let last_row = matrix(&mut loader, &x[(rows - 1) * cols..], cols)?;
    let weight = vector(&mut loader, &random.values(cols))?;
    let [mut input, mut out] = two_buffers(&mut loader, rows, cols)?;
    let mut backend = loader.finish()?;
    let mut last_of = |table, rows: usize| -> Result<[Vec<f32>; 2]> {
        fill(&mut backend, table, rows, &mut input)?;
        let norm = Norm::rms(&weight, 1e-5);
        within(&mut backend, rows, |step| step.norm_rows(NormRows { x: &input, norm, rows, out: &mut out }))?;
        let norm = backend.to_host(&out, rows, cols)?[(rows - 1) * cols..].to_vec();
        let (activation, half) = (Activation::Silu, cols / 2);
        within(&mut backend, rows, |step| {
            step.gated_activation(GatedActivation { gate_up: &input, activation, rows, cols: half, out: &mut out })
        })?;
        Ok([norm, backend.to_host(&out, rows, cols / 2)?[(rows - 1) * cols / 2..].to_vec()])
    };
    let [norm, gated] = last_of(&table, rows)?;
    let [norm_alone, gated_alone] = last_of(&last_row, 1)?;
    tally.same("norm of a row alone", &norm_alone, &norm);
    tally.same("gated activation of a row alone", &gated_alone, &gated);
    Ok(())
}
