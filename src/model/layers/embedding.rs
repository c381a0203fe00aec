//! The weights that make the first layer's input of the embeddings of tokens.

use super::{NormWeights, Tensors, Visitor};
use crate::Result;
use crate::model::spec::ModelSpec;

/// See `EmbeddingSpec`.
pub(in crate::model) struct EmbeddingWeights<T: Tensors> {
    /// Tables of positions and of token types, row by row.
    pub(in crate::model) positions: Option<T::Vector>,
    pub(in crate::model) token_types: Option<T::Vector>,
    pub(in crate::model) norm: Option<NormWeights<T>>,
}

impl<T: Tensors> EmbeddingWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(model: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let mut table =
            |name: &str, rows: Option<usize>| rows.map(|rows| visitor.vector_of(name, [model.hidden_size, rows]));
        let positions = table("position_embd.weight", model.embedding.positions).transpose()?;
        let token_types = table("token_types.weight", model.embedding.token_types).transpose()?;
        let norm = model.embedding.norm.map(|name| NormWeights::visit(name, model, visitor)).transpose()?;
        Ok(Self { positions, token_types, norm })
    }
}
