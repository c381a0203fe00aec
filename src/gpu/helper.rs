//! The program of a process that was started for a job that may crash (`job`): it calls `main`.

mod driver_probe;

use std::io::Read;

use serde_json::Value;

use super::job::child;
use super::job::{COMPILE, PROBE, TRY_PRODUCTS};
use super::{compile, vendor};

/// Does the job on standard input and ends the process.
pub fn main() -> ! {
    let mut text = Vec::new();
    let read = std::io::stdin().read_to_end(&mut text).map_err(|error| error.to_string());
    let job = read.and_then(|_| serde_json::from_slice(&text).map_err(|error| error.to_string()));
    let job: Value = job.unwrap_or_default();
    // A text without a marker is not a job, so nobody waits for an answer.
    let marker = job["marker"].as_str().unwrap_or_default().to_owned();
    child::answer(marker.as_bytes(), move || match job["kind"].as_str() {
        Some(TRY_PRODUCTS) => vendor::trial::run(&job),
        Some(COMPILE) => compile::run(&job),
        Some(PROBE) => driver_probe::run(&job),
        other => Err(format!("a job of kind {other:?}")),
    })
}
