//! Panics as errors: one of ours costs the request, or the step, that it happened in.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Error;

/// Steps in a row that may panic before the executor is taken for broken.
const MAX_PANICS: u32 = 3;

pub(super) fn guarded<T>(f: impl FnOnce() -> T) -> std::thread::Result<T> {
    catch_unwind(AssertUnwindSafe(f))
}

/// A panic of ours outside the forward pass fails the one request that it happened in.
pub(super) fn panicked(doing: &str, payload: &(dyn Any + Send)) -> Error {
    let problem = format!("a panic in {doing}: {}", panic_message(payload));
    tracing::error!("{problem}");
    Error::StepFailed { problem }
}

pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// Counts a panic of the executor in a step; the last one that is borne says that the engine cannot go on.
pub(super) fn forward_panicked(panics: &mut u32, payload: &(dyn Any + Send)) -> Error {
    *panics += 1;
    let problem = format!("a panic in the forward pass: {}", panic_message(payload));
    tracing::error!(panics_in_a_row = *panics, "{problem}");
    if *panics < MAX_PANICS {
        return Error::StepFailed { problem };
    }
    Error::EngineDead { reason: format!("{MAX_PANICS} steps in a row panicked; the last: {problem}") }
}
