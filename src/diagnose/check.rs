//! Complete validation of a model file, beyond the checks of a load: every value of every tensor is read.

use std::path::Path;

use super::events::with_warnings;
use crate::Error;
use crate::config::Pooling;
use crate::engine::{LoadProgress, load_tokenizer, sampling_defaults};
use crate::error::readable;
use crate::gguf::GgufFile;
use crate::model::{ModelSpec, ModelTensors};
use crate::tokenizer::ChatTemplate;

/// One check: a summary of what it found, or every problem.
#[derive(Debug, Clone)]
pub struct CheckStage {
    pub name: &'static str,
    pub summary: String,
    /// Parts of the file that are usable but may not be what its authors intended.
    pub warnings: Vec<String>,
    pub problems: Vec<Error>,
}

impl CheckStage {
    fn new(name: &'static str, result: crate::Result<String>) -> Self {
        let (summary, problems) = match result {
            Ok(summary) => (summary, Vec::new()),
            Err(error) => (String::new(), vec![error]),
        };
        Self { name, summary, warnings: Vec::new(), problems }
    }

    /// Runs a check and collects the warnings that a load would give.
    fn run(name: &'static str, check: impl FnOnce() -> crate::Result<String>) -> Self {
        let (result, warnings) = with_warnings(check);
        Self { warnings, ..Self::new(name, result) }
    }
}

/// Checks the file's structure, then what each reader of the file needs. A file that cannot be opened has one stage.
/// `progress` counts tensor bytes and may return `false` to stop.
pub fn check_file(path: &Path, progress: &mut dyn FnMut(LoadProgress) -> bool) -> Vec<CheckStage> {
    let file = match GgufFile::open(path) {
        Ok(file) => file,
        Err(error) => return vec![CheckStage::new("file", Err(error))],
    };
    let size = readable(file.tensor_bytes());
    let summary = format!("GGUF v{}, {} tensors, {size} of weights", file.version(), file.tensors().len());
    vec![
        CheckStage::new("file", Ok(summary)),
        CheckStage::run("architecture", || architecture(&file)),
        CheckStage::run("tokenizer", || tokenizer(&file)),
        CheckStage::run("chat template", || chat_template(&file)),
        CheckStage::run("sampling", || Ok(sampling(&file))),
        values(&file, progress),
    ]
}

/// Checks the metadata that the architecture needs, and every tensor's shape against it.
fn architecture(file: &GgufFile) -> crate::Result<String> {
    let spec = ModelSpec::from_gguf(file, None)?;
    ModelTensors::collect(file, &spec)?.head()?;
    Ok(format!("{}, all tensors are present and fit", spec.architecture))
}

/// Returns the tasks that a model of this file supports, as names of `LLM` methods; none if this version cannot run it.
pub fn tasks(file: &GgufFile) -> Vec<&'static str> {
    let Ok(spec) = ModelSpec::from_gguf(file, None) else { return Vec::new() };
    let (generates, ranks) = (!spec.is_bidirectional(), spec.pooling == Pooling::Rank);
    let all = [("generate", generates), ("embed", true), ("score", ranks)];
    all.into_iter().filter_map(|(name, there)| there.then_some(name)).collect()
}

fn tokenizer(file: &GgufFile) -> crate::Result<String> {
    Ok(match load_tokenizer(file.metadata())? {
        None => "none in the file: only token ids can be served".into(),
        Some(tokenizer) => {
            format!("{} tokens, {} of them end a generation", tokenizer.vocab_size(), tokenizer.eos_token_ids().len())
        }
    })
}

fn chat_template(file: &GgufFile) -> crate::Result<String> {
    Ok(match ChatTemplate::from_metadata(file.metadata())? {
        Some(template) => template.check().map(|()| "present, and compiles".into())?,
        None => "none in the file".into(),
    })
}

/// Returns the sampling parameters that the file recommends.
fn sampling(file: &GgufFile) -> String {
    let defaults = sampling_defaults(file.metadata());
    let top_k = defaults.top_k.map(|top_k| format!("top_k {top_k}"));
    let reals = [
        ("temperature", defaults.temperature),
        ("top_p", defaults.top_p),
        ("min_p", defaults.min_p),
        ("repetition_penalty", defaults.repetition_penalty),
    ];
    let reals = reals.into_iter().filter_map(|(name, value)| value.map(|value| format!("{name} {value}")));
    let all: Vec<String> = reals.chain(top_k).collect();
    if all.is_empty() { "nothing is recommended".into() } else { all.join(", ") }
}

/// Checks that every value is finite.
fn values(file: &GgufFile, progress: &mut dyn FnMut(LoadProgress) -> bool) -> CheckStage {
    let total = file.tensor_bytes();
    let mut done = 0;
    let mut problems = Vec::new();
    for info in file.tensors() {
        if !progress(LoadProgress { done, total }) {
            problems.push(Error::Interrupted);
            break;
        }
        problems.extend(file.validate_tensor(info).err());
        done += info.num_bytes as u64;
    }
    let summary = match problems.len() {
        0 => format!("all finite in {} tensors", file.tensors().len()),
        _ => String::new(),
    };
    CheckStage { name: "values", summary, warnings: Vec::new(), problems }
}
