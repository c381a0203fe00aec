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

const ALL: [Architecture; 4] = [
    Architecture { name: "llama", spec: llama::spec },
    Architecture { name: "qwen2", spec: qwen2::spec },
    Architecture { name: "qwen3", spec: qwen3::spec },
    Architecture { name: "qwen3moe", spec: qwen3moe::spec },
];

impl ModelSpec {
    /// What the model of a file is.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key or tensor that is missing, contradictory or not supported.
    pub fn from_gguf(gguf: &GgufFile) -> Result<Self> {
        let metadata = gguf.metadata();
        let name = metadata.str("general.architecture")?;
        let architecture = ALL.iter().find(|architecture| architecture.name == name).ok_or_else(|| {
            let names = ALL.each_ref().map(|architecture| architecture.name).join(", ");
            let problem = format!("architecture '{name}' is not supported; this version runs {names}");
            metadata.error("general.architecture", problem)
        })?;
        (architecture.spec)(&Keys { metadata, gguf, architecture: architecture.name })
    }
}
