//! Parts that all Python objects of an engine share: the engine, the process it belongs to, and the rules for blocking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use pyo3::prelude::*;

use crate::engine::Engine;
use crate::{Error, Result};

/// Time between two looks for signals (Ctrl-C) of a blocked call.
pub(super) const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Handle {
    /// `None` only while it is dropped.
    engine: Option<Engine>,
    process: u32,
    /// Python closed it, as against an engine that died.
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
    /// `Error::Forked` in a child process: the engine's threads, and maybe the holders of its locks, do not exist
    /// there.
    pub(super) fn engine(&self) -> Result<&Engine> {
        match &self.engine {
            Some(engine) if self.process == std::process::id() => Ok(engine),
            Some(_) => Err(Error::Forked { owner: self.process, current: std::process::id() }),
            None => Err(Error::EngineDead { reason: "it was closed".into() }),
        }
    }

    /// Runs `call` on a thread of its own and waits for it, so that Ctrl-C ends the wait. After an interrupt the call
    /// runs to its end unobserved.
    pub(super) fn interruptible<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Engine) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let engine = self.engine()?.clone();
        let (sender, receiver) = bounded(1);
        std::thread::spawn(move || {
            // The receiver is gone after an interrupt; then nobody wants the result.
            let _ = sender.send(call(&engine));
        });
        wait(py, &receiver)
    }
}

/// Waits for an answer with the interpreter released, and with an eye on signals.
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

/// The output thread may be waiting for the interpreter while the engine's end waits for the output thread: the
/// interpreter is released first.
impl Drop for Handle {
    fn drop(&mut self) {
        let mut engine = self.engine.take();
        if Python::try_attach(|py| py.detach(|| drop(engine.take()))).is_none() {
            drop(engine);
        }
    }
}
