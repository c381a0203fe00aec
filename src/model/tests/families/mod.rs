//! Tests of what single families need.

pub(super) mod cpu_experts;
pub(super) mod experts;
mod gemma3n;
pub(super) mod gemma4;
pub(super) mod joint_experts;
mod latent;
pub(super) mod nemotron;
pub(super) mod states;
