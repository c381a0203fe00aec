//! The tensors of a block that guesses tokens.

use super::{LayerWeights, NormWeights, Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::model::spec::{LayerSpec, ModelSpec, Presence};

/// The first of the blocks behind the layers of the model, which guesses the token after the next one (multi-token
/// prediction: DeepSeek-V3, arXiv 2412.19437, section 2.2; llama.cpp's names). Of a token and the model's hidden state
/// of the token before it, `projection · [norm(embedding) ; norm(hidden)]` goes through a layer; its norm is a hidden
/// state again, from which the model's output projection makes logits. Files of several such blocks have one for each
/// further token; the first one serves for all of them here, each time with the hidden state that it has left itself.
///
/// Embeddings and output projection are the model's: copies of these that a file has in the block are not loaded.
pub(in crate::model) struct DrafterWeights<T: Tensors> {
    pub(in crate::model) embedding_norm: NormWeights<T>,
    pub(in crate::model) hidden_norm: NormWeights<T>,
    pub(in crate::model) projection: T::Matrix,
    pub(in crate::model) layer: LayerWeights<T>,
    pub(in crate::model) output_norm: NormWeights<T>,
}

impl<T: Tensors> DrafterWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(layer: &LayerSpec, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let index = spec.layers.len();
        let norm = |name: &str, visitor: &mut V| NormWeights::visit(&of_layer(index, name), spec, visitor);
        let (embedding_norm, hidden_norm) = (norm("nextn.enorm", visitor)?, norm("nextn.hnorm", visitor)?);
        let (rows, cols) = (spec.hidden_size, spec.hidden_size.saturating_mul(2));
        let projection = visitor.matrix(&[part(of_layer(index, "nextn.eh_proj"), rows, cols, Presence::Absent)])?;
        let layer = LayerWeights::visit(index, layer, spec, visitor)?;
        Ok(Self {
            embedding_norm,
            hidden_norm,
            projection,
            layer,
            output_norm: norm("nextn.shared_head_norm", visitor)?,
        })
    }
}
