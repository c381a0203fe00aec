//! `qwen3vl`: the text part of Qwen 3 VL. Its RoPE gives each pair one of three positions, which are the same for text:
//! what is left is `qwen3`.

pub(super) use super::qwen3::spec;
