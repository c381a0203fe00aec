//! `gemma-embedding`: EmbeddingGemma. The layers of `gemma3` with bidirectional attention, whose window reaches equally
//! far to both sides. Optional matrices follow the pooling.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::config::Pooling;
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, EmbedSpec, LayerSpec, ModelSpec, NormSpec, Norms, QkNorm};

/// Default: full attention in the last of six layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(6);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let norm = NormSpec::rms(keys.eps("attention.layer_norm_rms_epsilon")?);
    let mut model = keys.encoder_with(norm, Pooling::Mean)?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    model.embed = matrices(keys, model.hidden_size)?;
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    let base_of_windows = keys.rope_base("rope.freq_base_swa")?;
    for layer in keys.layers_of(&model)? {
        let (reach, rope) = match is_windowed[layer] {
            true => (window / 2, LayerRope::OfBase(RopeKind::Neox, base_of_windows)),
            false => (u32::MAX, LayerRope::OfFile(RopeKind::Neox)),
        };
        let attention = keys.attention_in_both_directions(&mut model, layer, reach, rope)?;
        let attention = AttentionSpec { qk_norm: Some(QkNorm::Heads), ..attention };
        let ffn = keys.dense(layer, Activation::Gelu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}

/// Tensors of the matrices, and the keys of their numbers of columns and rows.
const MATRICES: [([&str; 2], [&str; 2]); 2] = [
    (["dense_2.weight", "dense_2.bias"], ["dense_2_feat_in", "dense_2_feat_out"]),
    (["dense_3.weight", "dense_3.bias"], ["dense_3_feat_in", "dense_3_feat_out"]),
];

/// Returns the matrices after the pooling. Converters write them only on request.
fn matrices(keys: &Keys<'_>, hidden_size: usize) -> Result<Vec<EmbedSpec>> {
    let (mut matrices, mut size) = (Vec::new(), hidden_size);
    for ([weight, bias], [columns, rows]) in MATRICES {
        let (cols, out) = match (keys.opt_size(columns)?, keys.opt_size(rows)?) {
            (None, None) => continue,
            (None, _) => return Err(keys.missing(columns)),
            (_, None) => return Err(keys.missing(rows)),
            (Some(cols), Some(out)) => (cols, out),
        };
        if cols != size {
            return Err(keys.error(columns, format!("is {cols}, expected {size}, as much as comes before")));
        }
        size = out;
        matrices.push(EmbedSpec { weight, bias, shape: [size, cols] });
    }
    Ok(matrices)
}
