//! `bert`: BERT (arXiv 1810.04805). Learned positions and token types, a norm after each addition, and a bias on every
//! matrix.

use crate::Result;
use crate::backend::Activation;
use crate::keys::Keys;
use crate::keys::encoder::BERT_NORMS;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, DenseSpec, EmbeddingSpec, Ffn, Gate, LayerSpec, ModelSpec, Presence, RowGate};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.encoder(true)?;
    let positions = Some(model.context_length);
    let token_types = keys.token_types()?;
    // Reranking models that were trained with two token types use them for the two texts of a pair.
    let separator = match token_types {
        Some(2..) if model.rank.is_some() => Some(keys.separator()?),
        _ => None,
    };
    model.embedding = EmbeddingSpec { positions, token_types, separator, ..model.embedding };
    let [mixer_norms, ffn_norms] = BERT_NORMS;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Required,
            output_bias: Presence::Required,
            ..keys.attention_in_both_directions(&mut model, layer, u32::MAX, LayerRope::None)?
        };
        let ffn = Ffn::Dense(DenseSpec {
            size: keys.size_of(layer, "feed_forward_length")?,
            activation: Activation::GeluErf,
            gate: Gate::None,
            bias: Presence::Required,
            row_gate: RowGate::None,
            sparsity: None,
        });
        model.layers.push(LayerSpec { mixer_norms, ffn_norms, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
