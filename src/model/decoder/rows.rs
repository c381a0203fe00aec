//! The rows of a step with requested results. If they fit into the logits buffer, they are computed within the step.
//! Otherwise, as for the logits of a whole prompt, the step computes the hidden states of all tokens. The output
//! projection then takes their rows piece by piece. So a prompt goes through the layers in the same way with and
//! without its logits.

use std::ops::Range;

use super::{Buffers, Decoder, Input, Model, logits_of, no_logits};
use crate::backend::{Backend, GatherRows, NormRows, Ops};
use crate::batch::Batch;
use crate::layers::NormWeights;
use crate::selection::{Needs, SamplingRequest, Selection};
use crate::vision::Images;
use crate::{Error, Result};

/// The end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// The requested rows, all or none: their logits, or the residuals before these. Without rows, the step ends with
    /// the last keys and values.
    Rows { rows: usize, wants_logits: bool },
    /// The hidden states of all tokens, for `Model::head`.
    Hidden,
}

impl Ends {
    /// The last keys and values.
    pub(super) const STORED: Self = Self::Rows { rows: 0, wants_logits: false };
}

/// The rows of a step, and the results that are needed of them.
#[derive(Debug, Default)]
pub(super) struct Launched {
    num_rows: usize,
    needs: Needs,
    rest: Option<Rest>,
}

/// A step whose rows are computed piece by piece.
#[derive(Debug)]
struct Rest {
    /// The step, with the rows of the piece that was selected last.
    batch: Batch,
    /// Indices in the batch of the tokens of all rows.
    indices: Vec<u32>,
}

/// The rows that were selected last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Selected {
    num_rows: usize,
    needs: Needs,
    /// True if the output norm has already been applied to their hidden states.
    is_normed: bool,
}

impl<B: Backend> Decoder<B> {
    /// Returns the number of rows that `select` takes at once.
    pub fn rows_at_once(&self) -> usize {
        self.limits.max_logits_rows
    }

    /// Starts a step. It computes the needed results of the rows in the batch's `logits_indices`. With more than
    /// `rows_at_once` rows, it computes the hidden states from which `select` computes the results. `images` has the
    /// images of which the batch has rows.
    ///
    /// # Errors
    /// Errors of the backend. `Interrupted` if the step was interrupted before its end. Then the KV slots of the step's
    /// tokens hold arbitrary values, and all other slots are unchanged.
    pub fn launch(&mut self, backend: &mut B, batch: &Batch, images: &Images, needs: Needs) -> Result<()> {
        self.launched = Launched::default();
        let (tokens, num_rows) = (batch.num_tokens(), batch.logits_indices.len());
        if tokens == 0 || tokens > self.limits.max_num_batched_tokens {
            return Err(Error::internal(format!("a step of {tokens} tokens; the limits are {:?}", self.limits)));
        }
        let models = &mut self.models;
        if num_rows <= self.limits.max_logits_rows {
            let ends = |rows: usize| Ends::Rows { rows, wants_logits: needs.logits };
            match batch.images.runs.is_empty() {
                true => {
                    backend.step(batch, &mut |step: &mut B::Step<'_>| models.forward(step, ends(step.num_logits())))?
                }
                false => models.run_with_images(backend, batch, images, ends(num_rows))?,
            }
            self.launched = Launched { num_rows, needs, rest: None };
            return Ok(());
        }
        let mut batch = batch.clone();
        let indices = std::mem::take(&mut batch.logits_indices);
        match batch.images.runs.is_empty() {
            true => backend.step(&batch, &mut |step: &mut B::Step<'_>| models.forward(step, Ends::Hidden))?,
            false => models.run_with_images(backend, &batch, images, Ends::Hidden)?,
        }
        batch.chosen.clear();
        self.launched = Launched { num_rows, needs, rest: Some(Rest { batch, indices }) };
        Ok(())
    }

    /// Sets what `collect` returns for these rows of the last launched step. It takes all rows, or a piece of at most
    /// `rows_at_once` rows if there are more. Pieces are collected one by one, before the next launch.
    ///
    /// # Errors
    /// Errors of the backend, including `Interrupted`.
    pub fn select(
        &mut self,
        backend: &mut B,
        rows: Range<usize>,
        sampling_requests: &[SamplingRequest<'_>],
    ) -> Result<()> {
        let Launched { num_rows, needs, rest } = &mut self.launched;
        let is_piece = rows.end <= *num_rows && rows.len() <= self.limits.max_logits_rows;
        if rows.len() != sampling_requests.len() || !(rows == (0..*num_rows) || rest.is_some()) || !is_piece {
            let sampling_requests = sampling_requests.len();
            return Err(Error::internal(format!(
                "{sampling_requests} sampling requests for the rows {rows:?} of {num_rows}"
            )));
        }
        let models = &mut self.models;
        if let Some(Rest { batch, indices }) = rest {
            batch.logits_indices.clear();
            batch.logits_indices.extend_from_slice(&indices[rows.clone()]);
            let wants_logits = needs.logits;
            backend.step_apart(batch, &mut |step: &mut B::Step<'_>| {
                models.main.head(step, &mut models.buffers, wants_logits)
            })?;
        }
        let is_normed = rest.is_some() && models.main.weights.drafter.is_some();
        self.selected = Selected { num_rows: rows.len(), needs: *needs, is_normed };
        match &models.buffers.logits {
            Some(logits) if !rows.is_empty() && needs.logits => {
                backend.select(logits, models.main.spec.vocab_size, sampling_requests)
            }
            _ => Ok(()),
        }
    }

    /// Waits for the rows that were selected last.
    pub fn collect<'a>(&'a mut self, backend: &'a mut B) -> Result<Selection<'a>> {
        let Model { spec, weights, .. } = &self.models.main;
        let Buffers { last, work, logits, .. } = &mut self.models.buffers;
        let Selected { num_rows: rows, needs, is_normed } = self.selected;
        self.hidden.clear();
        if rows > 0 && needs.hidden {
            let (x, out) = (&last.residual, &mut work.normed);
            let hidden = match weights.output_norm.as_ref().filter(|_| !is_normed) {
                Some(norm) => backend.normed_rows(NormRows { x, norm: norm.norm(), rows, out })?,
                None => backend.to_host(x, rows, spec.hidden_size)?,
            };
            self.hidden.extend_from_slice(hidden);
        }
        let selection = match logits {
            Some(logits) if rows > 0 && needs.logits => backend.collect(logits, rows, spec.vocab_size)?,
            _ => Selection::without_logits(rows, spec.vocab_size),
        };
        Ok(selection.with_hidden(&self.hidden, spec.hidden_size))
    }
}

impl<B: Backend> Model<B> {
    /// Gathers the rows that the step names from the hidden states of an `Ends::Hidden` step. Puts them where other
    /// steps leave their rows, and computes the logits if these are wanted.
    fn head(&self, step: &mut B::Step<'_>, buffers: &mut Buffers<B>, wants_logits: bool) -> Result<()> {
        let Self { spec, weights, .. } = self;
        let Buffers { all, last, work, logits, drafts, .. } = buffers;
        // The MTP block has overwritten the residuals, and keeps the normed hidden states.
        let (x, norm): (_, Option<&NormWeights<B>>) = match (&weights.drafter, drafts) {
            (Some(_), Some(drafts)) => (&drafts.hidden, None),
            _ => (&all.residual, weights.output_norm.as_ref()),
        };
        step.gather_rows(GatherRows { x, cols: spec.hidden_size, out: &mut last.residual })?;
        if !wants_logits {
            return Ok(());
        }
        let (logits, rows) = (logits.as_mut().ok_or_else(no_logits)?, step.num_logits());
        logits_of(step, Input { x: &last.residual, norm, rows }, weights, spec, &mut work.normed, logits)
    }
}
