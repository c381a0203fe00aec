//! Computes the input of the first layer from the token embeddings.

use crate::Result;
use crate::backend::{AddRows, Backend, Embed, Ops, TableRow};
use crate::layers::Weights;
use crate::spec::ModelSpec;

/// `residual = norm(scale * token + position + token type)`. Models have only some of these terms.
pub(super) fn embed<B: Backend>(
    step: &mut B::Step<'_>,
    spec: &ModelSpec,
    weights: &Weights<B>,
    residual: &mut B::Buffer,
) -> Result<()> {
    step.embed(Embed { table: &weights.token_embd, scale: spec.embedding_scale, out: &mut *residual })?;
    let (cols, embedding) = (spec.hidden_size, &weights.embedding);
    let of_type = spec.embedding.separator.map_or(TableRow::First, TableRow::SecondBehind);
    let tables = [(&embedding.positions, TableRow::OfPosition), (&embedding.token_types, of_type)];
    for (table, row) in tables {
        if let Some(table) = table {
            step.add_rows(AddRows { table, cols, row, out: &mut *residual })?;
        }
    }
    let tokens = step.num_tokens();
    embedding.norm.as_ref().map_or(Ok(()), |norm| norm.apply(step, residual, tokens))
}
