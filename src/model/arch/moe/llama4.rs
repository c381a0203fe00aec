//! `llama4`: the text part of Llama 4 Scout and Maverick. Three of four layers attend to chunks. The fourth has full
//! attention without RoPE, and scales up queries at far positions. Norms of q and k heads have no weights. All or some
//! layers have a shared expert and one routed expert per row, whose input is weighted.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind, Temperature};
use crate::batch::GroupKind;
use crate::keys::Keys;
use crate::keys::common::HeadKeys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, DenseSpec, Ffn, Gate, LayerSpec, ModelSpec, Presence, QkNorm, RowGate};

/// Every n-th layer has no RoPE, and the other layers have chunks of this many tokens. No key states either.
const WITHOUT_ROPE: usize = 4;
const CHUNK: u32 = 8192;
/// The scaling of queries at far positions.
const TEMPERATURE: Temperature = Temperature { scale: 0.1, context: CHUNK, offset: 1 };
/// Number of experts of Maverick, whose heads have no norms. No key identifies it.
const EXPERTS_OF_MAVERICK: usize = 128;

const WINDOW: &str = "attention.sliding_window";
const USED: &str = "expert_used_count";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = experts(keys, &model, size)?;
    let period = keys.opt_size("interleave_moe_layer_step")?.unwrap_or(1);
    // 0 means that every layer has RoPE and full attention.
    let has_chunks = match keys.opt_u32(WINDOW)? {
        None | Some(CHUNK) => true,
        Some(0) => false,
        Some(other) => return Err(keys.error(WINDOW, format!("is {other}, expected {CHUNK} or 0"))),
    };
    for layer in keys.layers_of(&model)? {
        let attention = match has_chunks && (layer + 1).is_multiple_of(WITHOUT_ROPE) {
            true => AttentionSpec {
                temperature: Some(TEMPERATURE),
                ..keys.attention_over(&mut model, layer, None, LayerRope::None)?
            },
            false => {
                let kind = if has_chunks { GroupKind::Chunked { size: CHUNK } } else { GroupKind::Full };
                let rope = LayerRope::OfFile(RopeKind::Norm);
                let attention = keys.attention_of_kind(HeadKeys::OF_FILE, &mut model, layer, kind, rope)?;
                let has_norms = experts.num != EXPERTS_OF_MAVERICK;
                AttentionSpec { qk_norm: has_norms.then_some(QkNorm::PlainHeadsAfterRope), ..attention }
            }
        };
        let ffn = match (layer + 1).is_multiple_of(period) {
            false => keys.dense(layer, Activation::Silu)?,
            true => {
                let (activation, gate, bias) = (Activation::Silu, Gate::Own, Presence::Absent);
                let shared = Some(DenseSpec { size, activation, gate, bias, row_gate: RowGate::None, sparsity: None });
                Ffn::Experts { experts, shared }
            }
        };
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}

/// Returns experts of which each row uses one. Its input is multiplied by the sigmoid of its logit.
fn experts(keys: &Keys<'_>, model: &ModelSpec, size: usize) -> Result<ExpertSpec> {
    let experts = keys.sigmoid_experts(model, size, Activation::Silu)?;
    if experts.used != 1 {
        let problem = format!("is {}, expected 1: the input of several experts has no one weight", experts.used);
        return Err(keys.error(USED, problem));
    }
    Ok(ExpertSpec { normalize: false, weighs_inputs: true, ..experts })
}
