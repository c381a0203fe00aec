//! `deepseek2`: DeepSeek V2 Lite, V3 and R1, Kimi K2, GLM-4.7-Flash. Multi-head latent attention (MLA), and grouped
//! experts beside shared ones. Routing is by sigmoid with a selection bias, or by softmax.

use crate::Result;
use crate::backend::{LatentShape, RopeKind};
use crate::batch::GroupKind;
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::layers::of_layer;
use crate::spec::{LatentSpec, LayerSpec, Mixer, ModelSpec};

const KEYS_AND_VALUES: &str = "attn_kv_b.weight";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    refuse_old_files(keys)?;
    let mut model = keys.model()?;
    let shape = shape(keys)?;
    let scale = scale(keys, shape)?;
    let (q_rank, temperature) = (keys.opt_size("attention.q_lora_rank")?, keys.temperature(model.context_length)?);
    for layer in keys.layers_of(&model)? {
        let latent = LatentSpec {
            shape,
            q_rank,
            kv_layer: model.num_kv_layers(),
            kv_group: model.join_kv_group(GroupKind::Full, shape.queries(), Some(shape.rank)),
            rope: keys.rope(ROPE_DIMS, &mut model, LayerRope::Unscaled(RopeKind::Norm), shape.rope_dim)?,
            scale,
            temperature,
            eps: model.norm.eps,
            fused_kv: false,
        };
        let ffn = keys.dense_then_experts(&model, layer)?;
        model.layers.push(LayerSpec::with_mixer(Mixer::Latent(latent), ffn));
    }
    Ok(model)
}

const ROPE_DIMS: &str = "rope.dimension_count";

/// Older files have keys and values of all heads in one matrix, which cannot be absorbed unchanged.
fn refuse_old_files(keys: &Keys<'_>) -> Result<()> {
    let name = of_layer(0, KEYS_AND_VALUES);
    match keys.gguf.tensor(&name) {
        None => Ok(()),
        Some(_) => Err(keys.metadata.error(
            name,
            "comes from an old converter, which is not supported (expected attn_k_b and attn_v_b). Convert the model again \
             with a current convert_hf_to_gguf.py, or take a newer file",
        )),
    }
}

fn shape(keys: &Keys<'_>) -> Result<LatentShape> {
    let (rank, rope_dim) = (keys.size("attention.kv_lora_rank")?, keys.size(ROPE_DIMS)?);
    let head_dim = keys.size("attention.key_length_mla")?;
    let plain_dim = head_dim.checked_sub(rope_dim).filter(|&plain| plain > 0);
    let plain_dim = plain_dim.ok_or_else(|| {
        let problem = format!("is {head_dim}, expected more than the {rope_dim} elements that RoPE rotates");
        keys.error("attention.key_length_mla", problem)
    })?;
    let expected =
        [("attention.head_count_kv", 1), ("attention.key_length", rank + rope_dim), ("attention.value_length", rank)];
    for (key, expected) in expected {
        let got = keys.size(key)?;
        if got != expected {
            return Err(keys.error(key, format!("is {got}, expected {expected} beside attention.kv_lora_rank {rank}")));
        }
    }
    Ok(LatentShape {
        num_heads: keys.size("attention.head_count")?,
        plain_dim,
        rope_dim,
        rank,
        value_dim: keys.size("attention.value_length_mla")?,
    })
}

/// Returns `m^2 / sqrt(head size)`, where m is YaRN's attention factor. In these files, the multiplier applies directly
/// to the logarithm.
fn scale(keys: &Keys<'_>, shape: LatentShape) -> Result<f32> {
    let multiplier = keys.opt_f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    let factor = match keys.opt_str("rope.scaling.type")? {
        Some("yarn") => keys.opt_f32("rope.scaling.factor")?.filter(|&factor| factor > 0.0).unwrap_or(1.0),
        _ => 1.0,
    };
    let sharper = 1.0 + f64::from(multiplier) * f64::from(factor).ln();
    Ok((sharper * sharper / (shape.head_dim() as f64).sqrt()) as f32)
}
