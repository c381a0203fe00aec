//! Steps with images. Rows of images replace the embeddings of their tokens, and in some models further rows are added
//! after the first layers (DeepStack, arXiv 2406.04334). Such a step is computed in parts. The host writes rows between
//! them. It is never captured, and steps without images are computed as a whole.

use std::ops::Range;

use super::{Ends, Model, Models};
use crate::backend::{Backend, StepOps};
use crate::batch::Batch;
use crate::buffers::Buffers;
use crate::images::ImageRun;
use crate::spec::Sections;
use crate::vision::{ImageRows, Images};
use crate::{Error, Result};

/// The padding token of the models that have inputs for each layer.
const PADDING: u32 = 0;

/// A part of a forward pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// True if the part begins with the embeddings of the tokens.
    pub(super) embeds: bool,
    pub(super) layers: Range<usize>,
    /// True if the host has written the angles of RoPE.
    pub(super) has_angles: bool,
}

impl Part {
    pub(super) const WHOLE: Self = Self { embeds: true, layers: 0..usize::MAX, has_angles: false };
}

/// The rows of a run of tokens.
struct Run<'a> {
    run: ImageRun,
    rows: &'a ImageRows,
}

impl<B: Backend> Models<B> {
    /// Computes a step with rows of images. `ends` says which rows it leaves: logits, or hidden states.
    pub(super) fn run_with_images(
        &mut self,
        backend: &mut B,
        batch: &Batch,
        images: &Images,
        ends: Ends,
    ) -> Result<()> {
        let Self { main, draft, buffers } = self;
        let runs = main.runs(batch, images)?;
        if let Some(draft) = draft.as_mut().filter(|_| !main.spec.draft_lags()) {
            backend.step_apart(batch, &mut |step: &mut B::Step<'_>| draft.forward(step, buffers, Ends::STORED))?;
        }
        let has_angles = !batch.rope_positions.is_empty();
        if has_angles {
            main.write_angles(backend, batch, buffers)?;
        }
        // Images take the inputs of layers from the row of the padding token.
        let mut padded = batch.clone();
        runs.iter().for_each(|Run { run, .. }| padded.token_ids[run.tokens()].fill(PADDING));
        // The first part fills in the tokens that the device has picked, and embeds them.
        let known = Batch { chosen: Vec::new(), ..batch.clone() };
        let deepest = runs.iter().map(|run| run.rows.deepstack.len()).max().unwrap_or(0);
        let mut start = 0;
        // The first part computes embeddings only, the next ones a layer each, and the last one all other layers.
        for end in (0..=deepest).chain([usize::MAX]) {
            let embeds = end == 0;
            let part = Part { embeds, layers: start..end, has_angles };
            let of_part = if embeds { &padded } else { &known };
            let ops: &mut StepOps<'_, B> = &mut |step: &mut B::Step<'_>| main.forward_part(step, buffers, ends, &part);
            backend.step_apart(of_part, ops)?;
            match end {
                0 => main.replace_embeddings(backend, &runs, buffers)?,
                usize::MAX => {}
                layers => main.add_rows(backend, &runs, layers - 1, buffers)?,
            }
            start = end;
        }
        Ok(())
    }
}

impl<B: Backend> Model<B> {
    /// Returns the runs of a batch with their rows.
    ///
    /// # Errors
    /// `Error::Internal` if rows are missing or do not fit the model.
    fn runs<'a>(&self, batch: &Batch, images: &'a Images) -> Result<Vec<Run<'a>>> {
        let (hidden, layers) = (self.spec.hidden_size, self.spec.layers.len());
        let places = batch.rope_positions.len();
        if places != 0 && places != batch.num_tokens() {
            return Err(Error::internal(format!("{places} RoPE positions of {} tokens", batch.num_tokens())));
        }
        let of_run = |&run: &ImageRun| {
            let rows = images.get(&run.image)?;
            let end = (run.first_row + run.len) as usize * hidden;
            let holds = |rows: &Vec<f32>| rows.len() >= end;
            let is_inside = run.tokens().end <= batch.num_tokens();
            let fits = holds(&rows.rows) && rows.deepstack.iter().all(holds) && rows.deepstack.len() < layers;
            (is_inside && fits).then_some(Run { run, rows })
        };
        let runs: Option<Vec<Run<'a>>> = batch.images.runs.iter().map(of_run).collect();
        runs.ok_or_else(|| Error::internal(format!("{:?} of {} images", batch.images.runs, images.len())))
    }

    /// Writes cos and sin of tokens that have three RoPE positions.
    fn write_angles(&self, backend: &mut B, batch: &Batch, buffers: &mut Buffers<B>) -> Result<()> {
        let sections = self.spec.sections.ok_or_else(|| Error::internal("three RoPE positions in a model of one"))?;
        for (rope, out) in self.spec.ropes.iter().zip(&mut buffers.angles[self.first_angles..]) {
            let pairs = rope.inv_freq.len();
            if pairs > 0 {
                let angles = angles(sections, &rope.inv_freq, rope.magnitude, &batch.rope_positions);
                backend.write_rows(out, 0, &angles, 2 * pairs)?;
            }
        }
        Ok(())
    }

    fn replace_embeddings(&self, backend: &mut B, runs: &[Run<'_>], buffers: &mut Buffers<B>) -> Result<()> {
        let cols = self.spec.hidden_size;
        runs.iter().try_for_each(|Run { run, rows }| {
            backend.write_rows(&mut buffers.all.residual, run.tokens().start, rows_of(run, &rows.rows, cols), cols)
        })
    }

    /// Adds the rows that images have for the output of layer `layer`.
    fn add_rows(&self, backend: &mut B, runs: &[Run<'_>], layer: usize, buffers: &mut Buffers<B>) -> Result<()> {
        let (cols, residual) = (self.spec.hidden_size, &mut buffers.all.residual);
        for Run { run, rows } in runs {
            let Some(added) = rows.deepstack.get(layer) else { continue };
            let tokens = run.tokens();
            let mut sums = backend.to_host(residual, tokens.end, cols)?[tokens.start * cols..].to_vec();
            sums.iter_mut().zip(rows_of(run, added, cols)).for_each(|(sum, added)| *sum += added);
            backend.write_rows(residual, tokens.start, &sums, cols)?;
        }
        Ok(())
    }
}

fn rows_of<'a>(run: &ImageRun, rows: &'a [f32], cols: usize) -> &'a [f32] {
    &rows[run.first_row as usize * cols..][..run.len as usize * cols]
}

/// Returns cos and sin of each token's pairs. The section of a pair says which position turns it.
fn angles(sections: Sections, inv_freq: &[f32], magnitude: f32, positions: &[[u32; 3]]) -> Vec<f32> {
    let mut angles = Vec::with_capacity(positions.len() * 2 * inv_freq.len());
    for position in positions {
        // The product is rounded to f32, as in `rope_angles`.
        let turn = |(pair, inv_freq): (usize, &f32)| f64::from(position[sections.position_of(pair)] as f32 * inv_freq);
        let turns: Vec<f64> = inv_freq.iter().enumerate().map(turn).collect();
        angles.extend(turns.iter().map(|turn| turn.cos() as f32 * magnitude));
        angles.extend(turns.iter().map(|turn| turn.sin() as f32 * magnitude));
    }
    angles
}
