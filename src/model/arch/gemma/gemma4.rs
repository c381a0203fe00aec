//! `gemma4`: the text part of Gemma 4. Layers with and without a window have different head sizes, and v is normed. The
//! last layers share keys and values of earlier ones. There are per-layer inputs, and experts as a branch beside a
//! dense feed-forward.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, QkvLayout, RopeKind, Scoring};
use crate::keys::Keys;
use crate::keys::common::HeadKeys;
use crate::keys::rope::LayerRope;
use crate::layers::of_layer;
use crate::quant;
use crate::spec::{
    AttentionSpec, Ffn, LayerInputsSpec, LayerSpec, LogitsSpec, Mixer, ModelSpec, Norms, OUTPUT_SCALE, QkNorm,
};

const SHARED_LAYERS: &str = "attention.shared_kv_layers";
const LAYER_INPUTS: &str = "embedding_length_per_layer_input";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let hidden = model.hidden_size as f32;
    model.embedding_scale = hidden.sqrt();
    model.logits = LogitsSpec { softcap: keys.opt_positive("final_logit_softcapping")?, ..LogitsSpec::PLAIN };
    model.layer_inputs = layer_inputs(keys, &model)?;
    let (layers, is_windowed) = (keys.layers_of(&model)?.end, keys.listed_windows()?);
    for layer in 0..layers {
        let attention = Kind::of(keys, is_windowed[layer])?.attention(keys, &mut model, layer, &is_windowed)?;
        let ffn = match (keys.opt_u32("expert_count")?.unwrap_or(0), keys.dense(layer, Activation::Gelu)?) {
            (1.., Ffn::Dense(dense)) => Ffn::Branches { dense, experts: experts(keys, &model)? },
            (_, ffn) => ffn,
        };
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            output_scale: output_scale(keys, layer)?,
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}

/// A layer's kind of attention: a window or all tokens.
pub(super) struct Kind {
    pub(super) heads: HeadKeys,
    pub(super) window: Option<u32>,
    pub(super) rope: LayerRope,
}

impl Kind {
    fn of(keys: &Keys<'_>, is_windowed: bool) -> Result<Self> {
        Ok(match is_windowed {
            true => Self {
                heads: HeadKeys::OF_WINDOWS,
                window: Some(keys.required_window()?),
                rope: LayerRope::OfBase(RopeKind::Neox, keys.rope_base("rope.freq_base_swa")?),
            },
            false => Self { heads: HeadKeys::OF_FILE, window: None, rope: LayerRope::OfFile(RopeKind::Neox) },
        })
    }

    /// Returns a layer's attention. The last layers share the keys and values of the last layer of their kind before
    /// them.
    pub(super) fn attention(
        &self,
        keys: &Keys<'_>,
        model: &mut ModelSpec,
        layer: usize,
        is_windowed: &[bool],
    ) -> Result<AttentionSpec> {
        let (layers, shared) = (is_windowed.len(), keys.opt_u32(SHARED_LAYERS)?.unwrap_or(0) as usize);
        let own = layers.checked_sub(shared).filter(|&own| own > 0);
        let own = own.ok_or_else(|| keys.error(SHARED_LAYERS, format!("is {shared}, expected less than {layers}")))?;
        if layer < own {
            return self.own_attention(keys, model, layer);
        }
        let owner = (0..own).rev().find(|&owner| is_windowed[owner] == is_windowed[layer]);
        let owner = owner.ok_or_else(|| {
            let problem = format!("is {shared}: layer {layer} has no layer of its kind before these");
            keys.error(SHARED_LAYERS, problem)
        })?;
        self.attention_of(keys, model, layer, owner)
    }

    fn own_attention(&self, keys: &Keys<'_>, model: &mut ModelSpec, layer: usize) -> Result<AttentionSpec> {
        let attention = keys.attention_by(self.heads, model, layer, self.window, self.rope)?;
        Ok(AttentionSpec {
            scoring: Scoring::scaled(1.0),
            qk_norm: Some(QkNorm::Heads),
            v_norm: true,
            v_is_k: keys.gguf.tensor(&of_layer(layer, "attn_v.weight")).is_none(),
            ..attention
        })
    }

    /// Returns a layer's attention to the keys and values of layer `owner`, which is of the same kind.
    fn attention_of(&self, keys: &Keys<'_>, model: &ModelSpec, layer: usize, owner: usize) -> Result<AttentionSpec> {
        let Mixer::Attention(attention) = &model.layers[owner].mixer else {
            return Err(keys.error(SHARED_LAYERS, format!("names layer {owner}, which has no keys")));
        };
        let (qkv, of_owner) = (keys.heads(self.heads, layer, model.hidden_size)?, attention.qkv);
        if (qkv.num_kv_heads, qkv.head_dim) != (of_owner.num_kv_heads, of_owner.head_dim) {
            let problem = format!(
                "gives layer {layer} {} heads, but layer {owner}, whose keys and values it takes, {}",
                qkv.num_kv_heads, of_owner.num_kv_heads
            );
            return Err(keys.error("attention.head_count_kv", problem));
        }
        Ok(AttentionSpec { qkv: QkvLayout { has_kv: false, ..qkv }, ..attention.clone() })
    }
}

/// Returns experts with a factor per expert on their weights. The router reads rows of norm 1.
fn experts(keys: &Keys<'_>, model: &ModelSpec) -> Result<ExpertSpec> {
    let experts = keys.experts(model, keys.size("expert_feed_forward_length")?, Activation::Gelu)?;
    Ok(ExpertSpec { router_scale: 1.0 / (model.hidden_size as f32).sqrt(), output_scales: true, ..experts })
}

/// Returns the per-layer inputs. The model computes `(sqrt(size) * row + norm(W · x / sqrt(hidden))) / sqrt(2)`. RMS
/// norm is scale-invariant, so both divisors cancel. Only the epsilons have to be rescaled.
pub(super) fn layer_inputs(keys: &Keys<'_>, model: &ModelSpec) -> Result<Option<LayerInputsSpec>> {
    if keys.opt_u32(LAYER_INPUTS)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let size = keys.size(LAYER_INPUTS)?;
    Ok(Some(LayerInputsSpec {
        size,
        activation: Activation::Gelu,
        scale: (size as f32).sqrt(),
        projection_eps: model.norm.eps * model.hidden_size as f32,
        output_eps: model.norm.eps * 2.0,
    }))
}

/// Returns the factor on a layer's output, if the file has it.
fn output_scale(keys: &Keys<'_>, layer: usize) -> Result<Option<f32>> {
    let Some(info) = keys.gguf.tensor(&of_layer(layer, OUTPUT_SCALE)) else { return Ok(None) };
    let view = keys.gguf.view(info);
    let mut value = [0.0];
    if (view.rows, view.cols) != (1, 1) {
        return Err(keys.metadata.error(&info.name, format!("has shape {:?}, expected [1]", info.shape)));
    }
    quant::dequantize(view.ggml_type, view.data, &mut value)?;
    match value[0].is_finite() {
        true => Ok(Some(value[0])),
        false => Err(keys.metadata.error(&info.name, format!("is {}, expected a finite number", value[0]))),
    }
}
