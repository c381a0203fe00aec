//! `minicpm3`: MiniCPM3. Multi-head latent attention (MLA) with a fused tensor of keys and values, and NEOX RoPE on the
//! last elements of a head. There are factors on the embeddings, on the output of each half of a layer and under the
//! logits.

use crate::Result;
use crate::backend::{Activation, LatentShape, RopeKind};
use crate::batch::GroupKind;
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{LatentSpec, LayerSpec, LogitsSpec, Mixer, ModelSpec};

/// The factors `scale_emb`, `scale_depth` and `dim_model_base`. No key states them.
const EMBEDDING_SCALE: f32 = 12.0;
const DEPTH_SCALE: f32 = 1.4;
const BASE_SIZE: f32 = 256.0;

const KEYS: &str = "attention.key_length";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    let (shape, eps) = (shape(keys, model.hidden_size)?, model.norm.eps);
    let q_rank = Some(keys.size("attention.q_lora_rank")?);
    let layers = keys.layers_of(&model)?;
    // The embeddings and the norms' epsilon absorb the factor on outputs; see `granitemoe`.
    let residual = DEPTH_SCALE / (layers.len() as f32).sqrt();
    model.embedding_scale = EMBEDDING_SCALE / residual;
    model.norm.eps = eps / (residual * residual);
    model.logits = LogitsSpec { scale: BASE_SIZE / model.hidden_size as f32, softcap: None };
    for layer in layers {
        let latent = LatentSpec {
            shape,
            q_rank,
            kv_layer: model.num_kv_layers(),
            kv_group: model.join_kv_group(GroupKind::Full, shape.queries(), Some(shape.rank)),
            rope: keys.rope(ROPE_DIMS, &mut model, LayerRope::OfFile(RopeKind::Neox), shape.rope_dim)?,
            scale: 1.0 / (shape.head_dim() as f32).sqrt(),
            temperature: None,
            eps,
            fused_kv: true,
        };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::with_mixer(Mixer::Latent(latent), ffn));
    }
    Ok(model)
}

const ROPE_DIMS: &str = "rope.dimension_count";

fn shape(keys: &Keys<'_>, hidden_size: usize) -> Result<LatentShape> {
    let num_heads = keys.size("attention.head_count")?;
    let kv_heads = keys.size("attention.head_count_kv")?;
    if kv_heads != num_heads || !hidden_size.is_multiple_of(num_heads) {
        let problem = format!("is {kv_heads}, expected attention.head_count ({num_heads}), a divisor of {hidden_size}");
        return Err(keys.error("attention.head_count_kv", problem));
    }
    let (head_dim, rope_dim) = (keys.size(KEYS)?, keys.size(ROPE_DIMS)?);
    let plain_dim = head_dim.checked_sub(rope_dim).filter(|&plain| plain > 0);
    let plain_dim = plain_dim.ok_or_else(|| {
        keys.error(KEYS, format!("is {head_dim}, expected more than the {rope_dim} elements that RoPE rotates"))
    })?;
    let value_dim = keys.opt_size("attention.value_length")?.unwrap_or(hidden_size / num_heads);
    Ok(LatentShape { num_heads, plain_dim, rope_dim, rank: keys.size("attention.kv_lora_rank")?, value_dim })
}
