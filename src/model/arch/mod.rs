//! The architectures: one file each, whose `spec` says what the model of a file is. To add one: its file, and its entry
//! in `ALL`. Anything that a `ModelSpec` cannot express belongs into it first.

mod llama;
mod qwen2;
mod qwen3;
mod qwen3moe;

use super::keys::Keys;
use super::spec::ModelSpec;
use crate::Result;
use crate::gguf::GgufFile;

struct Architecture {
    /// `general.architecture`, and the prefix of its keys.
    name: &'static str,
    spec: fn(&Keys<'_>) -> Result<ModelSpec>,
}

const ALL: &[Architecture] = &[
    Architecture { name: "llama", spec: llama::spec },
    Architecture { name: "qwen2", spec: qwen2::spec },
    Architecture { name: "qwen3", spec: qwen3::spec },
    Architecture { name: "qwen3moe", spec: qwen3moe::spec },
];

impl ModelSpec {
    /// What the model of a file is. `max_model_len`: tokens of the longest sequence that will be served, where they are
    /// fewer than the model allows; RoPE of some models depends on it.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key or tensor that is missing, contradictory or not supported.
    pub fn from_gguf(gguf: &GgufFile, max_model_len: Option<usize>) -> Result<Self> {
        let metadata = gguf.metadata();
        let name = metadata.str("general.architecture")?;
        let architecture = ALL.iter().find(|architecture| architecture.name == name).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|architecture| architecture.name).collect();
            let names = names.join(", ");
            let problem = format!("architecture '{name}' is not supported; this version runs {names}");
            metadata.error("general.architecture", problem)
        })?;
        (architecture.spec)(&Keys { metadata, gguf, architecture: architecture.name, max_model_len })
    }
}
