//! Jobs that may crash run in a separate process: a program that the options name is started with the job on its
//! standard input. The Python bindings name the interpreter with a line that loads this module; tests name themselves.
//! `helper` is the other side, in that process.

pub(crate) mod child;

use std::ffi::OsString;
use std::time::Duration;

use serde_json::Value;

pub(super) use child::Failure;

/// Kinds of jobs.
pub(super) const TRY_PRODUCTS: &str = "try products";
pub(super) const COMPILE: &str = "compile";
pub(super) const PROBE: &str = "probe";

/// Does a job in a separate process.
///
/// # Errors
/// Says that the process died of the job, or why the job was not done.
pub(super) fn run(command: &[OsString], job: &Value, timeout: Duration) -> Result<Vec<u8>, Failure> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| Failure::NotRun(error.to_string()))?;
    let marker = blake3::hash(&random).to_hex().to_string();
    let mut job = job.clone();
    job["marker"] = marker.as_str().into();
    child::spawn(command, job.to_string().as_bytes(), marker.as_bytes(), timeout)
}
