//! `nomic-bert`: Nomic's BERT (arXiv 2402.01613). RoPE replaces learned positions, the feed-forward has a gate, and q,
//! k and v are one tensor. Only the norms have biases.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::encoder::BERT_NORMS;
use crate::keys::rope::LayerRope;
use crate::spec::{EmbeddingSpec, LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.encoder(true)?;
    model.embedding = EmbeddingSpec { token_types: keys.token_types()?, ..model.embedding };
    let [mixer_norms, ffn_norms] = BERT_NORMS;
    for layer in keys.layers_of(&model)? {
        let rope = LayerRope::OfFile(RopeKind::Neox);
        let attention = keys.attention_in_both_directions(&mut model, layer, u32::MAX, rope)?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec { mixer_norms, ffn_norms, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
