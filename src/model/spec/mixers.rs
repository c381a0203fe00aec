//! Mixers other than attention over per-head keys and values.

use crate::backend::{DeltaNetShape, LatentShape, Mamba2Shape, MambaShape, Temperature};

/// Multi-head latent attention (MLA).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentSpec {
    pub shape: LatentShape,
    /// Size of the latent vector from which q is computed, if the model compresses q.
    pub q_rank: Option<usize>,
    /// Index into `ModelSpec::kv_groups`, and index among the model's KV layers.
    pub kv_group: usize,
    pub kv_layer: usize,
    /// Index into `ModelSpec::ropes`.
    pub rope: usize,
    /// Factor on the attention scores.
    pub scale: f32,
    pub temperature: Option<Temperature>,
    /// Epsilon of the norms of latent vectors.
    pub eps: f32,
    /// The matrices of keys and values are one tensor, `attn_kv_b`, in which the matrices of keys are transposed.
    pub fused_kv: bool,
}

/// A gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetSpec {
    pub shape: DeltaNetShape,
    pub projections: Projections,
}

/// A Mamba mixer of the first version.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MambaSpec {
    pub shape: MambaShape,
    /// Elements of the short time steps, from which those of all channels are computed.
    pub rank: usize,
    /// Epsilon of the norms of short time steps, B and C.
    pub eps: f32,
    /// True if its convolution has biases.
    pub taps_bias: bool,
    pub norms: MambaNorms,
}

/// The norms of short time steps, B and C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MambaNorms {
    None,
    /// Norms without weights.
    Plain,
    /// The file has their weights.
    Weighted,
}

/// A Mamba-2 mixer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Spec {
    pub shape: Mamba2Shape,
    /// Epsilon of its output norm, which does not norm rows of the residual.
    pub eps: f32,
    /// True if its convolution has biases.
    pub taps_bias: bool,
    /// True if its output goes through a norm.
    pub norm: bool,
}

/// The tensors that hold the projections of a gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// The tensors are `attn_qkv`, `attn_gate` (z), `ssm_beta` and `ssm_alpha`.
    Apart,
    /// The gates of a key head's values are adjacent: `attn_qkv`, `attn_gate`, `ssm_ba`.
    GatesTogether,
    /// q, k, v and z of a key head are adjacent: `ssm_in`, `ssm_ba`.
    HeadsTogether,
}
