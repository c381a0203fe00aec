//! The tensors of the MTP block, which proposes draft tokens.

use super::{LayerWeights, NormWeights, Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::spec::{LayerSpec, ModelSpec, Presence};

/// The first MTP block after the layers of the model, which proposes the token after the next one. Sources:
/// DeepSeek-V3, arXiv 2412.19437, section 2.2; the tensor names are llama.cpp's.
///
/// The block combines a token with the model's hidden state of the previous token:
/// `projection · [norm(embedding) ; norm(hidden)]`. The result goes through a layer and a norm, which gives a hidden
/// state again. The model's output projection turns it into logits.
///
/// Files with several MTP blocks have one per further token. Here the first block drafts all of them, from its own last
/// hidden state.
///
/// The block shares the model's embeddings and output projection. Copies of these in the file's block are not loaded.
pub(crate) struct DrafterWeights<T: Tensors> {
    pub(crate) embedding_norm: NormWeights<T>,
    pub(crate) hidden_norm: NormWeights<T>,
    pub(crate) projection: T::Matrix,
    pub(crate) layer: LayerWeights<T>,
    pub(crate) output_norm: NormWeights<T>,
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
