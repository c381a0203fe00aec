//! Panics as errors: one of ours costs the request, or the step, that it happened in.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Error;

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
