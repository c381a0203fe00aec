//! `gemma2`: Gemma 2: norms on both sides of attention and feed-forward, soft caps of scores and logits, a sliding
//! window in every other layer, embeddings times the root of their size.

use crate::Result;
use crate::backend::{Activation, RopeKind, Scoring};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, LayerSpec, LogitsSpec, ModelSpec, Norms};

/// The largest model divides scores by the root of its hidden size per head and not of its head size. No key of the
/// file says so; it is the one with so many layers.
const LAYERS_OF_27B: usize = 46;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    model.logits = LogitsSpec { softcap: keys.opt_positive("final_logit_softcapping")?, ..LogitsSpec::PLAIN };
    let (layers, window) = (keys.layers()?, keys.required_window()?);
    for layer in 0..layers {
        let window = layer.is_multiple_of(2).then_some(window);
        let attention = keys.attention_over(&mut model, layer, window, LayerRope::OfFile(RopeKind::Neox))?;
        let shared_out = match layers {
            LAYERS_OF_27B => model.hidden_size / attention.qkv.num_heads,
            _ => attention.qkv.head_dim,
        };
        let softcap = keys.opt_positive("attn_logit_softcapping")?;
        let scoring = Scoring { scale: 1.0 / (shared_out as f32).sqrt(), softcap };
        let ffn = keys.dense(layer, Activation::Gelu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms { before: Some("attn_norm"), after: Some("post_attention_norm") },
            ffn_norms: Norms { before: Some("ffn_norm"), after: Some("post_ffw_norm") },
            ..LayerSpec::new(AttentionSpec { scoring, ..attention }, ffn)
        });
    }
    Ok(model)
}
