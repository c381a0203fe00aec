//! `starcoder`: StarCoder and SantaCoder. Like `gpt2`, with one KV head.

pub(super) use super::gpt2::spec;
