//! `qwen2`: Qwen 2 and 2.5: biases on q, k and v.

use super::{Architecture, Presence};
use crate::backend::{Activation, RopeKind};

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    rope_kind: RopeKind::Neox,
    activation: Activation::Silu,
    qkv_bias: Presence::Required,
    attn_output_bias: Presence::Absent,
    qk_norm: Presence::Absent,
    experts: Presence::Absent,
};
