//! Panics as errors: a panic of our code costs only the request or step in which it happened.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Error;
use crate::error::panic_message;

/// Consecutive steps that may panic before the executor is considered broken.
const MAX_PANICS: u32 = 3;

pub(crate) fn guarded<T>(f: impl FnOnce() -> T) -> std::thread::Result<T> {
    catch_unwind(AssertUnwindSafe(f))
}

/// Turns a panic outside the forward pass into the error of the one request in which it happened.
pub(crate) fn panicked(doing: &str, payload: &(dyn Any + Send)) -> Error {
    let problem = format!("a panic in {doing}: {}", panic_message(payload));
    tracing::error!("{problem}");
    Error::StepFailed { problem }
}

/// Counts a panic of the executor in a step. After `MAX_PANICS` in a row the engine cannot continue.
pub(crate) fn forward_panicked(panics: &mut u32, payload: &(dyn Any + Send)) -> Error {
    *panics += 1;
    let problem = format!("a panic in the forward pass: {}", panic_message(payload));
    tracing::error!(panics_in_a_row = *panics, "{problem}");
    if *panics < MAX_PANICS {
        return Error::StepFailed { problem };
    }
    Error::EngineDead { reason: format!("{MAX_PANICS} steps in a row panicked; the last: {problem}") }
}
