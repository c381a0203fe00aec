//! What distinguishes the architectures: data, one file each. To add one: a file with a constant, and its entry in
//! `ALL`. Anything that this data cannot express belongs into `DecoderSpec` first.

mod llama;
mod qwen2;
mod qwen3;
mod qwen3moe;

use crate::backend::{Activation, RopeKind};

/// Whether a kind of tensor belongs to an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Absent,
    Optional,
    Required,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Architecture {
    /// `general.architecture`, and the prefix of its keys.
    pub(super) name: &'static str,
    pub(super) rope_kind: RopeKind,
    pub(super) activation: Activation,
    pub(super) qkv_bias: Presence,
    pub(super) attn_output_bias: Presence,
    /// RMS norm of each query and key head before RoPE.
    pub(super) qk_norm: Presence,
    /// Several feed-forwards a layer, of which a router chooses (`expert_count`).
    pub(super) experts: Presence,
}

const ALL: [&Architecture; 4] = [&llama::LLAMA, &qwen2::QWEN2, &qwen3::QWEN3, &qwen3moe::QWEN3MOE];

pub(super) fn find(name: &str) -> Option<&'static Architecture> {
    ALL.into_iter().find(|arch| arch.name == name)
}

pub(super) fn names() -> String {
    ALL.map(|arch| arch.name).join(", ")
}
