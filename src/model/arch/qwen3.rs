//! `qwen3`: Qwen 3 dense models: an RMS norm on each query and key head, head size independent of the hidden size.

use super::{Architecture, Presence};
use crate::backend::{Activation, RopeKind};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    rope_kind: RopeKind::Neox,
    activation: Activation::Silu,
    qkv_bias: Presence::Absent,
    attn_output_bias: Presence::Absent,
    qk_norm: Presence::Required,
    experts: Presence::Absent,
};
