//! `qwen3moe`: Qwen 3 with experts (30B-A3B, 235B-A22B): the attention of `qwen3`, experts in every layer.

use super::qwen3::QWEN3;
use super::{Architecture, Presence};

pub(super) const QWEN3MOE: Architecture = Architecture { name: "qwen3moe", experts: Presence::Required, ..QWEN3 };
