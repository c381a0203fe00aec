//! Work of one thread that another thread can stop.

use std::time::Instant;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::interrupt::Interrupt;

/// Runs a function; once the scope is cancelled, the tokenization of long texts stops in it.
#[pyclass(frozen, name = "CancelScope", module = "rocmforge._rocmforge")]
pub(super) struct PyCancelScope {
    interrupt: Interrupt,
}

#[pymethods]
impl PyCancelScope {
    #[new]
    fn new() -> Self {
        Self { interrupt: Interrupt::default() }
    }

    /// Returns what `function()` returns. Raises `concurrent.futures.CancelledError` if the scope stopped it.
    fn run<'py>(&self, function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        self.interrupt.scope(|| function.call0()).map_err(|error| {
            if !(self.interrupt.is_due() && error.is_instance_of::<PyKeyboardInterrupt>(py)) {
                return error;
            }
            let cancelled = py.import("concurrent.futures").and_then(|module| module.getattr("CancelledError"));
            cancelled.and_then(|class| class.call0()).map_or_else(|error| error, PyErr::from_value)
        })
    }

    /// Stops the work. Callable from any thread; without effect on work that has ended.
    fn cancel(&self) {
        self.interrupt.stop_at(Instant::now());
    }
}
