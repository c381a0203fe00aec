//! Tests with files from other writers (the golden models, with expected values from gguf-py), with malformed files,
//! and with files written here byte by byte.

mod damage;
mod golden;
mod malformed;
mod metadata;
mod open;
mod quant;
mod split;
mod tensors;

use std::path::Path;

use super::GgufFile;
use super::header::{self, Header};
use crate::{Error, Result};

/// Parses bytes as the first file of a model.
fn parse(data: &[u8]) -> Result<Header> {
    header::parse(Path::new("test.gguf"), data, 0)
}

/// Returns the message of a malformed file, without its path.
fn problem(error: &Error) -> String {
    match error {
        Error::ModelFile { location, problem, .. } => format!("{location}: {problem}"),
        other => panic!("not an error of the file: {other:?}"),
    }
}

/// Fails unless `result` is an error of the file whose message contains `expected`.
#[track_caller]
fn assert_rejected<T>(case: &str, result: Result<T>, expected: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{case} was accepted"));
    let problem = problem(&error);
    assert!(problem.contains(expected), "{case}: {problem:?} does not say {expected:?}");
}

/// Scans every tensor.
fn validate_values(file: &GgufFile) -> Result<()> {
    file.tensors().iter().try_for_each(|info| file.validate_tensor(info))
}
