//! State that all Python objects of an engine share: the engine, its process, and the rules for blocking calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use pyo3::prelude::*;

use crate::engine::Engine;
use crate::{Error, Result};

/// Time between two checks for signals (Ctrl-C) in a blocked call.
pub(super) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Handle {
    /// `None` only during drop.
    engine: Option<Engine>,
    process: u32,
    /// True if Python closed the engine; false if it died.
    closed: AtomicBool,
}

impl Handle {
    pub(super) fn new(engine: Engine) -> Arc<Self> {
        Arc::new(Self { engine: Some(engine), process: std::process::id(), closed: AtomicBool::new(false) })
    }

    pub(super) fn note_close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn was_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// # Errors
    /// `Error::Forked` in a child process, which lacks the engine's threads and possibly the holders of its locks.
    pub(super) fn engine(&self) -> Result<&Engine> {
        match &self.engine {
            Some(engine) if self.process == std::process::id() => Ok(engine),
            Some(_) => Err(Error::Forked { owner: self.process, current: std::process::id() }),
            None => Err(Error::EngineDead { reason: "it was closed".into() }),
        }
    }

    /// Runs `call` on a new thread and waits for it, so Ctrl-C can end the wait. After an interrupt the call continues,
    /// and its result is dropped.
    pub(super) fn interruptible<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let engine = self.engine()?.clone();
        let (sender, receiver) = bounded(1);
        std::thread::spawn(move || {
            // After an interrupt the receiver is gone, and nobody needs the result.
            let _ = sender.send(call(&engine));
        });
        wait(py, &receiver)
    }
}

/// Waits for an answer with the interpreter released, and checks for signals.
pub(super) fn wait<T: Send>(py: Python<'_>, receiver: &Receiver<Result<T>>) -> PyResult<T> {
    loop {
        match py.detach(|| receiver.recv_timeout(SIGNAL_INTERVAL)) {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::EngineDead { reason: "it ended without an answer".into() }.into());
            }
        }
    }
}

/// Releases the interpreter before the engine ends. The engine's end waits for the output thread, which may be waiting
/// for the interpreter.
impl Drop for Handle {
    fn drop(&mut self) {
        let mut engine = self.engine.take();
        if Python::try_attach(|py| py.detach(|| drop(engine.take()))).is_none() {
            drop(engine);
        }
    }
}
