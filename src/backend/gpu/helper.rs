//! Work that may crash, in a process of its own: a program that the options name is started with a job on its standard
//! input, and calls `main`. The Python bindings name the interpreter with a line that loads this very module; tests
//! name themselves.

use std::ffi::OsString;
use std::io::Read;
use std::time::Duration;

use serde_json::Value;

pub use super::child::Failure;
use super::{child, compile, vendor};

/// Kinds of jobs.
pub(super) const TRY_PRODUCTS: &str = "try products";
pub(super) const COMPILE: &str = "compile";

/// Does a job in a process of its own.
///
/// # Errors
/// That the process died of it, or why it was not done.
pub(super) fn run(command: &[OsString], job: &Value, timeout: Duration) -> Result<Vec<u8>, Failure> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| Failure::NotRun(error.to_string()))?;
    let marker = blake3::hash(&random).to_hex().to_string();
    let mut job = job.clone();
    job["marker"] = marker.as_str().into();
    child::spawn(command, job.to_string().as_bytes(), marker.as_bytes(), timeout)
}

/// Does the job on the standard input and ends the process.
pub fn main() -> ! {
    let mut text = Vec::new();
    let read = std::io::stdin().read_to_end(&mut text).map_err(|error| error.to_string());
    let job = read.and_then(|_| serde_json::from_slice(&text).map_err(|error| error.to_string()));
    let job: Value = job.unwrap_or_default();
    // Without a marker nobody waits for an answer: there was no job.
    let marker = job["marker"].as_str().unwrap_or_default().to_owned();
    child::answer(marker.as_bytes(), move || match job["kind"].as_str() {
        Some(TRY_PRODUCTS) => vendor::trial::run(&job),
        Some(COMPILE) => compile::run(&job),
        other => Err(format!("a job of kind {other:?}")),
    })
}
