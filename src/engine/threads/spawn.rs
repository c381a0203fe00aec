//! Starts threads.

use std::thread::JoinHandle;

use crate::{Error, Result};

/// Starts a thread.
///
/// # Errors
/// `Internal` if the system cannot start one.
pub(crate) fn spawn<T: Send + 'static>(name: &str, body: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    spawned.map_err(|e| Error::internal(format!("the system cannot start a thread for {name}: {e}")))
}
