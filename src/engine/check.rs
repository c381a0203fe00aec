//! Complete validation of a model file, beyond what loading needs: every value of every tensor is read.

use std::path::Path;

use super::handle::LoadProgress;
use super::load::load_tokenizer;
use crate::Error;
use crate::gguf::GgufFile;
use crate::model::{DecoderSpec, ModelTensors};
use crate::tokenizer::ChatTemplate;

/// One thing that was checked: what was found, or every problem.
#[derive(Debug, Clone)]
pub struct CheckStage {
    pub name: &'static str,
    pub summary: String,
    pub problems: Vec<Error>,
}

impl CheckStage {
    fn new(name: &'static str, result: crate::Result<String>) -> Self {
        match result {
            Ok(summary) => Self { name, summary, problems: Vec::new() },
            Err(error) => Self { name, summary: String::new(), problems: vec![error] },
        }
    }
}

/// Checks the file's structure, then what each reader of it needs. A file that cannot be opened has one stage.
/// `progress` counts tensor bytes and may return `false` to stop.
pub fn check_file(path: &Path, progress: &mut dyn FnMut(LoadProgress) -> bool) -> Vec<CheckStage> {
    let file = match GgufFile::open(path) {
        Ok(file) => file,
        Err(error) => return vec![CheckStage::new("file", Err(error))],
    };
    let summary =
        format!("GGUF v{}, {} tensors, {} bytes of weights", file.version(), file.tensors().len(), file.tensor_bytes());
    vec![
        CheckStage::new("file", Ok(summary)),
        CheckStage::new("architecture", architecture(&file)),
        CheckStage::new("tokenizer", tokenizer(&file)),
        CheckStage::new("chat template", chat_template(&file)),
        values(&file, progress),
    ]
}

/// The metadata that the architecture needs, and every tensor's shape against it.
fn architecture(file: &GgufFile) -> crate::Result<String> {
    let spec = DecoderSpec::from_gguf(file)?;
    ModelTensors::collect(file, &spec)?;
    Ok(format!("{}, every tensor is there and fits", spec.architecture()))
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
    let found = ChatTemplate::from_metadata(file.metadata())?.is_some();
    Ok(if found { "present, and compiles".into() } else { "none in the file".into() })
}

/// Every value is finite.
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
    CheckStage { name: "values", summary, problems }
}
