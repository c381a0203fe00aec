//! `qwen2vl`: the text part of Qwen 2 VL and 2.5 VL. Its RoPE gives each pair one of three positions, which are the
//! same for text: what is left is `qwen2`.

pub(super) use super::qwen2::spec;
