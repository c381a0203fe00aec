//! The architectures, one file each. The file's `spec` turns a model file's keys into a `ModelSpec`.
//!
//! A file is in the folder of its family (`qwen`, `gemma`, …). Without one, it is in the folder of its kind: `dense`,
//! `gpt`, `hybrid`, `moe` or `encoder`. To add an architecture, add its file, and its entry in `ALL` of the folder.
//! Extend `ModelSpec` first if it cannot express the architecture.

mod cohere;
mod deepseek;
mod dense;
mod encoder;
mod ernie;
mod exaone;
mod gemma;
mod glm;
mod gpt;
mod hunyuan;
mod hybrid;
mod moe;
mod qwen;

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

/// The architectures of each folder.
const ALL: [&[Architecture]; 13] = [
    cohere::ALL,
    deepseek::ALL,
    dense::ALL,
    encoder::ALL,
    ernie::ALL,
    exaone::ALL,
    gemma::ALL,
    glm::ALL,
    gpt::ALL,
    hunyuan::ALL,
    hybrid::ALL,
    moe::ALL,
    qwen::ALL,
];

fn architectures() -> impl Iterator<Item = &'static Architecture> {
    ALL.into_iter().flatten()
}

/// Returns the names of all architectures, sorted.
fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = architectures().map(|architecture| architecture.name).collect();
    names.sort_unstable();
    names
}

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
        let architecture = architectures().find(|architecture| architecture.name == name).ok_or_else(|| {
            let names = names().join(", ");
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
        assert_eq!(golden, names());
    }
}
