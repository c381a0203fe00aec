//! The only error type of the engine. Each variant has the received value, the expected value and the remedy.

use std::any::Any;
use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

/// All errors, grouped by who can fix them: the caller, the file, the machine, or this project.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A request (or an engine argument) that cannot be served. The engine continues.
    #[error("{what}: got {got}, expected {expected}")]
    InvalidRequest { what: &'static str, got: String, expected: String },

    #[error("no such file: {}", path.display())]
    FileNotFound { path: PathBuf },

    /// A GGUF file that is malformed, inconsistent or not supported. `location` names the key, tensor or part of the
    /// file.
    #[error("{}: {location}: {problem}", path.display())]
    ModelFile { path: PathBuf, location: String, problem: String },

    #[error("{operation} {}: {message}", path.display())]
    Io { operation: &'static str, path: PathBuf, message: String },

    #[error("{what} needs {}; {advice}", shortage(*.requested, *.available))]
    OutOfMemory { what: String, requested: u64, available: u64, advice: &'static str },

    /// The waiting queue is full; the caller may try again later.
    #[error(
        "the queue is full: {waiting} requests wait, max_queue_size is {limit}; try again later or raise max_queue_size"
    )]
    QueueFull { waiting: usize, limit: usize },

    /// The chat template of the file (or the one given) could not be rendered.
    #[error("chat template: {problem}")]
    ChatTemplate { problem: String },

    /// A device failed or is missing.
    #[error("device {device}: {problem}")]
    Device { device: String, problem: String },

    /// A step failed. Its requests end with this error, and the engine continues.
    #[error("the step that this request was part of failed: {problem}")]
    StepFailed { problem: String },

    /// The text exceeded the limits of its grammar, or reached a place without continuation. Only the request ends.
    #[error("structured_outputs: {problem}; give the text a form that is smaller, or has no such place")]
    GrammarFailed { problem: String },

    /// The engine has stopped (closed, or its device was lost) and serves nothing more.
    #[error("the engine is dead: {reason}")]
    EngineDead { reason: String },

    /// The caller stopped a load, or the engine interrupted a step. Only the former reaches a caller, since the engine
    /// schedules the step again.
    #[error("interrupted")]
    Interrupted,

    /// The handle was inherited by a forked process; the engine's threads live in the parent.
    #[error("this engine belongs to process {owner} and cannot be used in process {current} after fork; load it there")]
    Forked { owner: u32, current: u32 },

    /// An internal invariant is broken. The cause is a bug in rocmforge, never the input.
    #[error("internal error (please report it): {problem}")]
    Internal { problem: String },
}

impl Error {
    pub fn invalid(what: &'static str, got: impl ToString, expected: impl ToString) -> Self {
        Self::InvalidRequest { what, got: got.to_string(), expected: expected.to_string() }
    }

    pub fn internal(problem: impl ToString) -> Self {
        Self::Internal { problem: problem.to_string() }
    }
}

/// Formats `141 GB, 23.1 GB are available`; in bytes if both would show the same number.
pub fn shortage(requested: u64, available: u64) -> String {
    let (needs, has) = (readable(requested), readable(available));
    if needs == has {
        return format!("{requested} bytes, {available} are available");
    }
    format!("{needs}, {has} {} available", if available == 1 { "is" } else { "are" })
}

/// Formats bytes with three digits, in the decimal units of disks and GPUs.
pub fn readable(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")];
    let Some((unit, name)) = units.into_iter().find(|&(unit, _)| bytes >= unit) else {
        return format!("{bytes} bytes");
    };
    // Tenths and hundredths are computed in integers, so all 64 bits count.
    let (whole, rest) = (bytes / unit, bytes % unit);
    match whole {
        0..10 => format!("{whole}.{:02} {name}", rest * 100 / unit),
        10..100 => format!("{whole}.{} {name}", rest * 10 / unit),
        _ => format!("{whole} {name}"),
    }
}

/// Returns the message of a panic, from the payload of `catch_unwind` or `join`.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_can_be_read() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (16_384, "16.3 kB"),
            (1_000_000, "1.00 MB"),
            (23_127_556_096, "23.1 GB"),
            (141_000_000_000, "141 GB"),
            (u64::MAX, "18446744 TB"),
        ] {
            assert_eq!(readable(bytes), text);
        }
        let error = |requested, available| {
            Error::OutOfMemory { what: "this".into(), requested, available, advice: "wait" }.to_string()
        };
        assert_eq!(error(141_000_000_000, 23_127_556_096), "this needs 141 GB, 23.1 GB are available; wait");
        assert_eq!(
            error(23_127_556_097, 23_127_556_096),
            "this needs 23127556097 bytes, 23127556096 are available; wait"
        );
    }
}
