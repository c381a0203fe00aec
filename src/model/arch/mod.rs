//! The architectures: one file each, whose `spec` makes a `ModelSpec` of the file's keys. To add one, add its file and
//! its entry in `ALL`. Anything that a `ModelSpec` cannot express belongs into it first.

mod bert;
mod cohere2;
mod deepseek2;
mod ernie4_5;
mod exaone4;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod lfm2;
mod lfm2moe;
mod llama;
mod minimax_m2;
mod mistral3;
mod modern_bert;
mod nemotron_h;
mod nemotron_h_moe;
mod nomic_bert;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod seed_oss;
mod smollm3;
mod starcoder2;

use super::keys::Keys;
use super::spec::ModelSpec;
use crate::gguf::GgufFile;
use crate::{Error, Result};

struct Architecture {
    /// `general.architecture`, and the prefix of its keys.
    name: &'static str,
    spec: fn(&Keys<'_>) -> Result<ModelSpec>,
}

const ALL: &[Architecture] = &[
    Architecture { name: "bert", spec: bert::spec },
    Architecture { name: "cohere2", spec: cohere2::spec },
    Architecture { name: "deepseek2", spec: deepseek2::spec },
    Architecture { name: "ernie4_5", spec: ernie4_5::spec },
    Architecture { name: "exaone4", spec: exaone4::spec },
    Architecture { name: "gemma2", spec: gemma2::spec },
    Architecture { name: "gemma3", spec: gemma3::spec },
    Architecture { name: "gemma4", spec: gemma4::spec },
    Architecture { name: "glm4", spec: glm4::spec },
    Architecture { name: "glm4moe", spec: glm4moe::spec },
    Architecture { name: "gpt-oss", spec: gpt_oss::spec },
    Architecture { name: "granite", spec: granite::spec },
    Architecture { name: "granitehybrid", spec: granitehybrid::spec },
    Architecture { name: "granitemoe", spec: granitemoe::spec },
    Architecture { name: "hunyuan-dense", spec: hunyuan_dense::spec },
    Architecture { name: "lfm2", spec: lfm2::spec },
    Architecture { name: "lfm2moe", spec: lfm2moe::spec },
    Architecture { name: "llama", spec: llama::spec },
    Architecture { name: "minimax-m2", spec: minimax_m2::spec },
    Architecture { name: "mistral3", spec: mistral3::spec },
    Architecture { name: "modern-bert", spec: modern_bert::spec },
    Architecture { name: "nemotron_h", spec: nemotron_h::spec },
    Architecture { name: "nemotron_h_moe", spec: nemotron_h_moe::spec },
    Architecture { name: "nomic-bert", spec: nomic_bert::spec },
    Architecture { name: "olmo2", spec: olmo2::spec },
    Architecture { name: "phi3", spec: phi3::spec },
    Architecture { name: "qwen2", spec: qwen2::spec },
    Architecture { name: "qwen2vl", spec: qwen2vl::spec },
    Architecture { name: "qwen3", spec: qwen3::spec },
    Architecture { name: "qwen35", spec: qwen35::spec },
    Architecture { name: "qwen35moe", spec: qwen35moe::spec },
    Architecture { name: "qwen3moe", spec: qwen3moe::spec },
    Architecture { name: "qwen3next", spec: qwen3next::spec },
    Architecture { name: "qwen3vl", spec: qwen3vl::spec },
    Architecture { name: "seed_oss", spec: seed_oss::spec },
    Architecture { name: "smollm3", spec: smollm3::spec },
    Architecture { name: "starcoder2", spec: starcoder2::spec },
];

/// Architectures whose files may have a block that guesses tokens.
const NEXTN: [&str; 4] = ["glm4moe", "qwen35", "qwen35moe", "qwen3next"];

impl ModelSpec {
    /// Reads the model's spec from a file's keys. `max_model_len`: tokens of the longest sequence that will be served,
    /// where they are fewer than the model allows; RoPE of some models depends on it.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key or tensor that is missing, contradictory or not supported.
    pub fn from_gguf(gguf: &GgufFile, max_model_len: Option<usize>) -> Result<Self> {
        Self::read(gguf, max_model_len, false)
    }

    /// Reads the spec as `from_gguf` does, with the block of the file that guesses tokens.
    ///
    /// # Errors
    /// Errors of `from_gguf`, and `Error::InvalidRequest` for a file without such a block.
    pub fn with_drafter(gguf: &GgufFile, max_model_len: Option<usize>) -> Result<Self> {
        let spec = Self::read(gguf, max_model_len, true)?;
        match &spec.drafter {
            Some(_) => Ok(spec),
            None => {
                let (file, names) = (gguf.metadata().path().display(), NEXTN.join(", "));
                let expected = format!("a file with a NextN block, as those of {names} may have; {file} has none");
                Err(Error::invalid("speculative_config.method", "mtp", expected))
            }
        }
    }

    fn read(gguf: &GgufFile, max_model_len: Option<usize>, wants_drafter: bool) -> Result<Self> {
        let metadata = gguf.metadata();
        let name = metadata.str("general.architecture")?;
        let architecture = ALL.iter().find(|architecture| architecture.name == name).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|architecture| architecture.name).collect();
            let names = names.join(", ");
            let problem = format!("architecture '{name}' is not supported; this version runs {names}");
            metadata.error("general.architecture", problem)
        })?;
        let keys = Keys { metadata, gguf, architecture: architecture.name, max_model_len, wants_drafter };
        let spec = (architecture.spec)(&keys)?;
        match spec.kv_groups.is_empty() {
            true => Err(keys.error("block_count", "counts no layer with attention, of which this version needs one")),
            false => Ok(spec),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdata;

    /// Architectures whose tests make their file from another architecture's (`tests/test_architectures.py`,
    /// `src/model/tests/nemotron.rs`).
    const MADE_OF_ANOTHER: [&str; 3] = ["granitemoe", "nemotron_h_moe", "qwen2vl"];

    #[test]
    fn every_architecture_has_golden_data() {
        let of_file = |name: String| {
            let file = testdata::file(&format!("{name}.gguf"));
            GgufFile::open(&file.0).unwrap().metadata().str("general.architecture").unwrap().to_owned()
        };
        let files = testdata::architectures().into_iter().map(|name| format!("arch/{name}"));
        let encoders = testdata::ENCODERS.map(|name| format!("embedding/{name}"));
        let mut golden: Vec<String> = files.chain(encoders).map(of_file).collect();
        golden.extend(MADE_OF_ANOTHER.map(str::to_owned));
        golden.sort();
        golden.dedup();
        assert_eq!(golden, ALL.iter().map(|architecture| architecture.name).collect::<Vec<_>>());
    }
}
