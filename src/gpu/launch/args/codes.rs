//! The numbers of `kernels/args.h` that encode a model's variants and the layout of activations.

use super::{
    ACTIVATION_CLAMPED_SILU, ACTIVATION_CLAMPED_SWIGLU, ACTIVATION_GELU, ACTIVATION_GELU_ERF, ACTIVATION_KIND,
    ACTIVATION_RELU, ACTIVATION_SILU, ACTIVATION_SQUARED_RELU, ACTIVATION_XIELU, FORMAT_BF16, FORMAT_BF16_TILED,
    FORMAT_F16, FORMAT_F16_TILED, FORMAT_F32, FORMAT_FP8, GATE_SIGMOID, GATE_SOFTPLUS, GATING_SIGMOID, GATING_SOFTMAX,
    NORM_LAYER, NORM_RMS, NORM_WEIGHTS,
};
use crate::backend::{Activation, GateFunction, Gating, NormKind};

/// The layout of an activation buffer's rows in memory; `ActivationFormat` in `args.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Format {
    F32 = FORMAT_F32,
    F16 = FORMAT_F16,
    Bf16 = FORMAT_BF16,
    F16Tiled = FORMAT_F16_TILED,
    Bf16Tiled = FORMAT_BF16_TILED,
    /// Rows of e4m3, followed by the scales of all rows.
    Fp8 = FORMAT_FP8,
}

/// How a feed-forward combines its gate and up; `Activation` in `args.h`, with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct ActivationCode(u32);

impl ActivationCode {
    pub(crate) const SILU: Self = Self(ACTIVATION_SILU);

    pub(super) const fn number(self) -> u32 {
        self.0
    }
}

impl From<Activation> for ActivationCode {
    fn from(activation: Activation) -> Self {
        Self(match activation {
            Activation::Silu => ACTIVATION_SILU,
            Activation::Gelu => ACTIVATION_GELU,
            Activation::GeluErf => ACTIVATION_GELU_ERF,
            Activation::ClampedSwiglu => ACTIVATION_CLAMPED_SWIGLU,
            Activation::ClampedSilu { limit } => limit.to_bits() & !ACTIVATION_KIND | ACTIVATION_CLAMPED_SILU,
            Activation::Relu => ACTIVATION_RELU,
            Activation::SquaredRelu => ACTIVATION_SQUARED_RELU,
            Activation::Xielu(_) => ACTIVATION_XIELU,
        })
    }
}

/// The number that a norm divides a row by; `NormKind` in `args.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum NormCode {
    Rms = NORM_RMS,
    Layer = NORM_LAYER,
    Weights = NORM_WEIGHTS,
}

impl From<NormKind> for NormCode {
    fn from(kind: NormKind) -> Self {
        match kind {
            NormKind::Rms => Self::Rms,
            NormKind::Layer => Self::Layer,
            NormKind::Weights => Self::Weights,
        }
    }
}

/// The function of a head's gate before it multiplies; `GateFunction` in `args.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum GateCode {
    Sigmoid = GATE_SIGMOID,
    Softplus = GATE_SOFTPLUS,
}

impl From<GateFunction> for GateCode {
    fn from(function: GateFunction) -> Self {
        match function {
            GateFunction::Sigmoid => Self::Sigmoid,
            GateFunction::Softplus => Self::Softplus,
        }
    }
}

/// How logits become experts' weights; `Gating` in `args.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum GatingCode {
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
