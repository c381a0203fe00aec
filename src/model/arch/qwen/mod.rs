//! Qwen.

mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod qwen3vlmoe;

use super::Architecture;

pub(super) const ALL: &[Architecture] = &[
    Architecture { name: "qwen2", spec: qwen2::spec },
    Architecture { name: "qwen2moe", spec: qwen2moe::spec },
    Architecture { name: "qwen2vl", spec: qwen2vl::spec },
    Architecture { name: "qwen3", spec: qwen3::spec },
    Architecture { name: "qwen35", spec: qwen35::spec },
    Architecture { name: "qwen35moe", spec: qwen35moe::spec },
    Architecture { name: "qwen3moe", spec: qwen3moe::spec },
    Architecture { name: "qwen3next", spec: qwen3next::spec },
    Architecture { name: "qwen3vl", spec: qwen3vl::spec },
    Architecture { name: "qwen3vlmoe", spec: qwen3vlmoe::spec },
];
