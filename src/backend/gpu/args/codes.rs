//! Numbers of `kernels/args.h` that tell kernels what a model asks for, and how activations lie.

use super::{
    ACTIVATION_CLAMPED_SWIGLU, ACTIVATION_GELU, ACTIVATION_GELU_ERF, ACTIVATION_SILU, ACTIVATION_SQUARED_RELU,
    FORMAT_BF16, FORMAT_BF16_TILED, FORMAT_F16, FORMAT_F16_TILED, FORMAT_F32, FORMAT_FP8, GATING_SIGMOID,
    GATING_SOFTMAX, NORM_LAYER, NORM_RMS,
};
use crate::backend::{Activation, Gating, NormKind};

/// How the rows of an activation buffer lie in memory; `ActivationFormat` in `args.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Format {
    F32 = FORMAT_F32,
    F16 = FORMAT_F16,
    Bf16 = FORMAT_BF16,
    F16Tiled = FORMAT_F16_TILED,
    Bf16Tiled = FORMAT_BF16_TILED,
    /// Rows of e4m3, and behind them the scales of all rows.
    Fp8 = FORMAT_FP8,
}

/// How a feed-forward combines a gate and what it lets pass; `Activation` in `args.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::backend::gpu) enum ActivationCode {
    Silu = ACTIVATION_SILU,
    Gelu = ACTIVATION_GELU,
    ClampedSwiglu = ACTIVATION_CLAMPED_SWIGLU,
    SquaredRelu = ACTIVATION_SQUARED_RELU,
    GeluErf = ACTIVATION_GELU_ERF,
}

impl From<Activation> for ActivationCode {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Silu => Self::Silu,
            Activation::Gelu => Self::Gelu,
            Activation::GeluErf => Self::GeluErf,
            Activation::ClampedSwiglu => Self::ClampedSwiglu,
            Activation::SquaredRelu => Self::SquaredRelu,
        }
    }
}

/// The number that a norm divides a row by; `NormKind` in `args.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::backend::gpu) enum NormCode {
    Rms = NORM_RMS,
    Layer = NORM_LAYER,
}

impl From<NormKind> for NormCode {
    fn from(kind: NormKind) -> Self {
        match kind {
            NormKind::Rms => Self::Rms,
            NormKind::Layer => Self::Layer,
        }
    }
}

/// How logits become weights of experts; `Gating` in `args.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::backend::gpu) enum GatingCode {
    Softmax = GATING_SOFTMAX,
    Sigmoid = GATING_SIGMOID,
}

impl From<Gating> for GatingCode {
    fn from(gating: Gating) -> Self {
        match gating {
            Gating::Softmax => Self::Softmax,
            Gating::Sigmoid => Self::Sigmoid,
        }
    }
}
