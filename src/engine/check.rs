//! Complete validation of a model file, beyond what loading needs: every value of every tensor is read.

use std::path::Path;

use super::handle::LoadProgress;
use crate::Error;
use crate::gguf::{GgufFile, TensorInfo};
use crate::quant::{can_dequantize, dequantize};
use crate::tokenizer::{ChatTemplate, Tokenizer};

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
        CheckStage::new("tokenizer", tokenizer(&file)),
        CheckStage::new("chat template", chat_template(&file)),
        values(&file, progress),
    ]
}

fn tokenizer(file: &GgufFile) -> crate::Result<String> {
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    Ok(format!("{} tokens, {} of them end a generation", tokenizer.vocab_size(), tokenizer.eos_token_ids().len()))
}

fn chat_template(file: &GgufFile) -> crate::Result<String> {
    let found = ChatTemplate::from_metadata(file.metadata())?.is_some();
    Ok(if found { "present, and compiles".into() } else { "none in the file".into() })
}

/// Every value is finite.
fn values(file: &GgufFile, progress: &mut dyn FnMut(LoadProgress) -> bool) -> CheckStage {
    let total = file.tensor_bytes();
    let mut done = 0;
    let mut stage = CheckStage::new("values", Ok(String::new()));
    for info in file.tensors() {
        if let Err(error) = finite(file, info) {
            stage.problems.push(error);
        }
        file.release_pages(info);
        done += info.num_bytes as u64;
        if !progress(LoadProgress { done, total }) {
            break;
        }
    }
    if stage.problems.is_empty() {
        stage.summary = format!("all finite in {} tensors", file.tensors().len());
    }
    stage
}

fn finite(file: &GgufFile, info: &TensorInfo) -> crate::Result<()> {
    let view = file.view(info);
    let fault = |problem: String| file.metadata().error(&info.name, problem);
    if !can_dequantize(view.ggml_type) {
        return Err(fault(format!("type {} has no decoder", view.ggml_type.name())));
    }
    let row_bytes = view.ggml_type.row_bytes(view.cols).unwrap_or(0);
    let mut row = vec![0.0; view.cols];
    let mut bad = 0usize;
    for blocks in view.data.chunks_exact(row_bytes.max(1)) {
        dequantize(view.ggml_type, blocks, &mut row)?;
        bad += row.iter().filter(|value| !value.is_finite()).count();
    }
    match bad {
        0 => Ok(()),
        _ => Err(fault(format!("{bad} of {} values are infinite or NaN", view.rows * view.cols))),
    }
}
