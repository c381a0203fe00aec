//! `gemma3n`: the text part of Gemma 3n. Like `gemma4`, with heads of one size and no experts. Each token has several
//! hidden streams (AltUp), layers have a low-rank addition to the residual (Laurel), and the gates of some are sparse.

use super::gemma4::{Kind, layer_inputs};
use crate::Result;
use crate::backend::{Activation, RopeKind, STREAMS};
use crate::keys::Keys;
use crate::keys::common::HeadKeys;
use crate::keys::rope::LayerRope;
use crate::layers::of_layer;
use crate::spec::{AttentionSpec, DenseSpec, Ffn, LayerSpec, LogitsSpec, ModelSpec, Norms, StreamsSpec};

const SPARSITY: &str = "activation_sparsity_scale";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    model.logits = LogitsSpec { softcap: keys.opt_positive("final_logit_softcapping")?, ..LogitsSpec::PLAIN };
    model.layer_inputs = layer_inputs(keys, &model)?;
    model.streams = Some(streams(keys)?);
    let (is_windowed, sparsity) = (keys.listed_windows()?, sparsity(keys)?);
    let base_of_windows = keys.rope_base("rope.freq_base_swa")?;
    for layer in keys.layers_of(&model)? {
        let (window, rope) = match is_windowed[layer] {
            true => (Some(keys.required_window()?), LayerRope::OfBase(RopeKind::Neox, base_of_windows)),
            false => (None, LayerRope::OfFile(RopeKind::Neox)),
        };
        let kind = Kind { heads: HeadKeys::OF_FILE, window, rope };
        let attention = kind.attention(keys, &mut model, layer, &is_windowed)?;
        let attention = AttentionSpec { v_is_k: false, ..attention };
        let ffn = match keys.dense(layer, Activation::Gelu)? {
            Ffn::Dense(dense) => Ffn::Dense(DenseSpec { sparsity: sparsity[layer], ..dense }),
            ffn => ffn,
        };
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}

/// Returns the hidden streams. Layers read and change the first one. No key states the rank of the low-rank additions.
fn streams(keys: &Keys<'_>) -> Result<StreamsSpec> {
    for (key, expected) in [("altup.num_inputs", STREAMS as u32), ("altup.active_idx", 0)] {
        let value = keys.opt_u32(key)?.ok_or_else(|| keys.missing(key))?;
        if value != expected {
            return Err(keys.error(key, format!("is {value}, expected {expected}")));
        }
    }
    let name = of_layer(0, "laurel_l.weight");
    let tensor = keys.gguf.tensor(&name);
    let tensor = tensor.ok_or_else(|| keys.metadata.error(&name, "tensor is missing; the architecture requires it"))?;
    Ok(StreamsSpec { laurel_rank: keys.gguf.view(tensor).rows })
}

/// Returns the cutoff of each layer's gates in standard deviations. Minus infinity in the file means none.
fn sparsity(keys: &Keys<'_>) -> Result<Vec<Option<f32>>> {
    let cutoff = |&cutoff: &f32| match cutoff {
        f32::NEG_INFINITY => Ok(None),
        _ if cutoff.is_finite() => Ok(Some(cutoff)),
        _ => Err(keys.error(SPARSITY, format!("holds {cutoff}, expected finite numbers or -inf"))),
    };
    let layers = keys.layers()?;
    let cutoffs = keys.metadata.opt_f32s(&keys.full(SPARSITY))?.ok_or_else(|| keys.missing(SPARSITY))?;
    match cutoffs.len() == layers {
        true => cutoffs.iter().map(cutoff).collect(),
        false => Err(keys.error(SPARSITY, format!("has {} entries, expected one per layer ({layers})", cutoffs.len()))),
    }
}
