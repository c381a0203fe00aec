//! `t5encoder`: the encoder of T5 (arXiv 1910.10683), as in Sentence-T5 and GTR. Instead of RoPE, scores have learned
//! biases by distance, and they are not divided by the root of the head size.

use crate::Result;
use crate::backend::{Activation, Scoring};
use crate::config::Pooling;
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, DistanceBiases, Gate, LayerSpec, ModelSpec, NormSpec};

const BUCKETS: &str = "attention.relative_buckets_count";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let norm = NormSpec::rms(keys.eps("attention.layer_norm_rms_epsilon")?);
    let mut model = keys.encoder_with(norm, Pooling::Mean)?;
    let buckets = buckets(keys)?;
    for layer in keys.layers_of(&model)? {
        let has = |name: &str| keys.has_tensor(layer, name);
        // T5 has biases in the first layer, which serve all layers; UMT5 has its own in each layer.
        let biases = DistanceBiases { layer: if has(DistanceBiases::TENSOR) { layer } else { 0 }, buckets };
        let attention = keys.attention_in_both_directions(&mut model, layer, u32::MAX, LayerRope::None)?;
        let attention = AttentionSpec { scoring: Scoring::scaled(1.0), biases: Some(biases), ..attention };
        // The first version of T5, without a gate, uses ReLU.
        let ffn = match has("ffn_gate.weight") {
            true => keys.dense(layer, Activation::Gelu)?,
            false => keys.dense_of(layer, Activation::Relu, Gate::None)?,
        };
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}

/// Returns the number of buckets of distances, half of them for each direction.
fn buckets(keys: &Keys<'_>) -> Result<usize> {
    let (buckets, range) = (keys.size(BUCKETS)?, DistanceBiases::BUCKETS);
    match range.contains(&buckets) && buckets.is_multiple_of(2) {
        true => Ok(buckets),
        false => {
            let problem = format!("is {buckets}, expected an even number from {} to {}", range.start(), range.end());
            Err(keys.error(BUCKETS, problem))
        }
    }
}
