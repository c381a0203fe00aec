//! The weights that turn token embeddings into the first layer's input.

use super::{NormWeights, Tensors, Visitor};
use crate::Result;
use crate::spec::ModelSpec;

/// See `EmbeddingSpec`.
pub(crate) struct EmbeddingWeights<T: Tensors> {
    /// Tables of positions and of token types, row by row.
    pub(crate) positions: Option<T::Vector>,
    pub(crate) token_types: Option<T::Vector>,
    pub(crate) norm: Option<NormWeights<T>>,
}

impl<T: Tensors> EmbeddingWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(model: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let mut table =
            |name: &str, rows: Option<usize>| rows.map(|rows| visitor.vector_of(name, [model.hidden_size, rows]));
        let positions = table("position_embd.weight", model.embedding.positions).transpose()?;
        let token_types = table("token_types.weight", model.embedding.token_types).transpose()?;
        let norm = match model.embedding.norm {
            Some(name) => Some(NormWeights::visit(name, model, visitor)?),
            None if model.embedding.plain_norm => Some(NormWeights::plain(model, visitor)?),
            None => None,
        };
        Ok(Self { positions, token_types, norm })
    }
}
