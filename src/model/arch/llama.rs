//! `llama`: Llama 1 to 3.x, Mistral, Mixtral, SmolLM2 and others of that shape. The converter permutes q and k so that
//! RoPE pairs adjacent elements.

use super::{Architecture, Presence};
use crate::backend::{Activation, RopeKind};

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    rope_kind: RopeKind::Norm,
    activation: Activation::Silu,
    qkv_bias: Presence::Optional,
    attn_output_bias: Presence::Optional,
    qk_norm: Presence::Absent,
    experts: Presence::Optional,
};
