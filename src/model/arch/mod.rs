//! The architectures, one file each. The file's `spec` turns a model file's keys into a `ModelSpec`. To add an
//! architecture, add its file and its entry in `ALL`. Extend `ModelSpec` first if it cannot express the architecture.

mod afmoe;
mod apertus;
mod arcee;
mod bailingmoe2;
mod bert;
mod bloom;
mod cohere2;
mod cohere2moe;
mod command_r;
mod deepseek2;
mod dots1;
mod ernie4_5;
mod ernie4_5_moe;
mod eurobert;
mod exaone;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod granite_swa;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod hunyuan_moe;
mod hy_v3;
mod jais2;
mod jamba;
mod laguna;
mod lfm2;
mod lfm2moe;
mod llama;
mod llama4;
mod mamba;
mod mamba2;
mod mellum;
mod mimo2;
mod minicpm3;
mod minimax_m2;
mod mistral3;
mod mistral4;
mod modern_bert;
mod mpt;
mod muse_glimmer;
mod nemotron;
mod nemotron_h;
mod nemotron_h_moe;
mod nomic_bert;
mod olmo;
mod olmo2;
mod olmoe;
mod phi2;
mod phi3;
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
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder;
mod starcoder2;
mod step35;
mod t5encoder;

use super::keys::Keys;
use super::spec::{KvGroupSpec, ModelSpec};
use crate::batch::GroupKind;
use crate::gguf::{GgufFile, Metadata};
use crate::{Error, Result};

struct Architecture {
    /// `general.architecture`, which is also the prefix of its keys.
    name: &'static str,
    spec: fn(&Keys<'_>) -> Result<ModelSpec>,
}

const ALL: &[Architecture] = &[
    Architecture { name: "afmoe", spec: afmoe::spec },
    Architecture { name: "apertus", spec: apertus::spec },
    Architecture { name: "arcee", spec: arcee::spec },
    Architecture { name: "bailingmoe2", spec: bailingmoe2::spec },
    Architecture { name: "bert", spec: bert::spec },
    Architecture { name: "bloom", spec: bloom::spec },
    Architecture { name: "cohere2", spec: cohere2::spec },
    Architecture { name: "cohere2moe", spec: cohere2moe::spec },
    Architecture { name: "command-r", spec: command_r::spec },
    Architecture { name: "deepseek2", spec: deepseek2::spec },
    Architecture { name: "dots1", spec: dots1::spec },
    Architecture { name: "ernie4_5", spec: ernie4_5::spec },
    Architecture { name: "ernie4_5-moe", spec: ernie4_5_moe::spec },
    Architecture { name: "eurobert", spec: eurobert::spec },
    Architecture { name: "exaone", spec: exaone::spec },
    Architecture { name: "exaone-moe", spec: exaone_moe::spec },
    Architecture { name: "exaone4", spec: exaone4::spec },
    Architecture { name: "falcon", spec: falcon::spec },
    Architecture { name: "falcon-h1", spec: falcon_h1::spec },
    Architecture { name: "gemma", spec: gemma::spec },
    Architecture { name: "gemma-embedding", spec: gemma_embedding::spec },
    Architecture { name: "gemma2", spec: gemma2::spec },
    Architecture { name: "gemma3", spec: gemma3::spec },
    Architecture { name: "gemma3n", spec: gemma3n::spec },
    Architecture { name: "gemma4", spec: gemma4::spec },
    Architecture { name: "glm4", spec: glm4::spec },
    Architecture { name: "glm4moe", spec: glm4moe::spec },
    Architecture { name: "gpt-oss", spec: gpt_oss::spec },
    Architecture { name: "gpt2", spec: gpt2::spec },
    Architecture { name: "gptneox", spec: gptneox::spec },
    Architecture { name: "granite", spec: granite::spec },
    Architecture { name: "granite_swa", spec: granite_swa::spec },
    Architecture { name: "granitehybrid", spec: granitehybrid::spec },
    Architecture { name: "granitemoe", spec: granitemoe::spec },
    Architecture { name: "hunyuan-dense", spec: hunyuan_dense::spec },
    Architecture { name: "hunyuan-moe", spec: hunyuan_moe::spec },
    Architecture { name: "hy_v3", spec: hy_v3::spec },
    Architecture { name: "jais2", spec: jais2::spec },
    Architecture { name: "jamba", spec: jamba::spec },
    Architecture { name: "laguna", spec: laguna::spec },
    Architecture { name: "lfm2", spec: lfm2::spec },
    Architecture { name: "lfm2moe", spec: lfm2moe::spec },
    Architecture { name: "llama", spec: llama::spec },
    Architecture { name: "llama4", spec: llama4::spec },
    Architecture { name: "mamba", spec: mamba::spec },
    Architecture { name: "mamba2", spec: mamba2::spec },
    Architecture { name: "mellum", spec: mellum::spec },
    Architecture { name: "mimo2", spec: mimo2::spec },
    Architecture { name: "minicpm3", spec: minicpm3::spec },
    Architecture { name: "minimax-m2", spec: minimax_m2::spec },
    Architecture { name: "mistral3", spec: mistral3::spec },
    Architecture { name: "mistral4", spec: mistral4::spec },
    Architecture { name: "modern-bert", spec: modern_bert::spec },
    Architecture { name: "mpt", spec: mpt::spec },
    Architecture { name: "muse-glimmer", spec: muse_glimmer::spec },
    Architecture { name: "nemotron", spec: nemotron::spec },
    Architecture { name: "nemotron_h", spec: nemotron_h::spec },
    Architecture { name: "nemotron_h_moe", spec: nemotron_h_moe::spec },
    Architecture { name: "nomic-bert", spec: nomic_bert::spec },
    Architecture { name: "olmo", spec: olmo::spec },
    Architecture { name: "olmo2", spec: olmo2::spec },
    Architecture { name: "olmoe", spec: olmoe::spec },
    Architecture { name: "phi2", spec: phi2::spec },
    Architecture { name: "phi3", spec: phi3::spec },
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
    Architecture { name: "seed_oss", spec: seed_oss::spec },
    Architecture { name: "smollm3", spec: smollm3::spec },
    Architecture { name: "stablelm", spec: stablelm::spec },
    Architecture { name: "starcoder", spec: starcoder::spec },
    Architecture { name: "starcoder2", spec: starcoder2::spec },
    Architecture { name: "step35", spec: step35::spec },
    Architecture { name: "t5encoder", spec: t5encoder::spec },
];

/// Architectures whose files may have an MTP block.
const NEXTN: [&str; 4] = ["glm4moe", "qwen35", "qwen35moe", "qwen3next"];

impl ModelSpec {
    /// Reads the model's spec from a file's keys. `max_model_len` limits the longest sequence that will be served, if
    /// it is below the model's limit. RoPE of some models depends on it.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key or tensor that is missing, contradictory or not supported.
    pub fn from_gguf(gguf: &GgufFile, max_model_len: Option<usize>) -> Result<Self> {
        Self::read(gguf, max_model_len, false)
    }

    /// Reads the spec like `from_gguf`, with the file's MTP block.
    ///
    /// # Errors
    /// Errors of `from_gguf`, and `Error::InvalidRequest` for a file without an MTP block.
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
        refuse_other_kinds(metadata)?;
        let name = metadata.str("general.architecture")?;
        let architecture = ALL.iter().find(|architecture| architecture.name == name).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|architecture| architecture.name).collect();
            let names = names.join(", ");
            let problem = format!("architecture '{name}' is not supported; this version runs {names}");
            metadata.error("general.architecture", problem)
        })?;
        let keys = Keys::new(gguf, architecture.name, max_model_len, wants_drafter);
        let mut spec = (architecture.spec)(&keys)?;
        if spec.kv_groups.is_empty() && spec.state_bytes() == 0 {
            return Err(keys.error("block_count", "counts no layer with attention or a state, but feed-forwards alone"));
        }
        if spec.kv_groups.is_empty() {
            // Sequences are measured in blocks, even if no layer stores anything in them.
            spec.kv_groups.push(KvGroupSpec { kind: GroupKind::Full, layers: Vec::new() });
        }
        keys.check_all_read(&spec)?;
        Ok(spec)
    }
}

/// Kinds of files that accompany a model, by `general.type` or `general.architecture`, and a hint on their use.
const OTHER_KINDS: [(&str, &str); 4] = [
    ("adapter", "a LoRA adapter, which changes a model's weights; merge it into the model and open that"),
    ("clip", "an encoder of images or sounds (mmproj) of a model; open the file of its text model"),
    ("imatrix", "an importance matrix, which a quantiser reads; open the file of the model"),
    ("mmproj", "an encoder of images or sounds (mmproj) of a model; open the file of its text model"),
];

/// # Errors
/// `Error::ModelFile` for a file that only accompanies a model.
fn refuse_other_kinds(metadata: &Metadata) -> Result<()> {
    for key in ["general.type", "general.architecture"] {
        let kind = metadata.opt_str(key)?;
        if let Some((kind, what)) = OTHER_KINDS.iter().find(|(name, _)| Some(*name) == kind) {
            return Err(metadata.error(key, format!("is '{kind}': the file holds {what}")));
        }
    }
    // Importance matrices of older llama.cpp versions are recognizable only by their keys.
    match metadata.iter().find(|(key, _)| key.starts_with("imatrix.")) {
        Some((key, _)) if metadata.get("general.architecture").is_none() => {
            let (_, what) = OTHER_KINDS[2];
            Err(metadata.error(key, format!("the file holds {what}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testdata;

    #[test]
    fn every_architecture_has_golden_data() {
        let of_file = |name: String| {
            let file = testdata::file(&format!("{name}.gguf"));
            GgufFile::open(&file.0).unwrap().metadata().str("general.architecture").unwrap().to_owned()
        };
        let files = testdata::architectures().into_iter().map(|name| format!("arch/{name}"));
        let encoders = testdata::ENCODERS.map(|name| format!("embedding/{name}"));
        let mut golden: Vec<String> = files.chain(encoders).map(of_file).collect();
        golden.sort();
        golden.dedup();
        assert_eq!(golden, ALL.iter().map(|architecture| architecture.name).collect::<Vec<_>>());
    }
}
