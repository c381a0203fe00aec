//! Checks that the main interpreter of the process imports the module.

#![allow(unsafe_code)] // The stable ABI only has functions on pointers to get an interpreter's number.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// The main interpreter's number, according to CPython's documentation of `PyInterpreterState_GetID`.
const MAIN: i64 = 0;

/// Refuses sub-interpreters: the engine's threads would outlive them, and the process would hang at its end.
///
/// # Errors
/// `ImportError` in an interpreter that is not the main one.
pub(super) fn refuse_sub_interpreters(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: `_py` shows that this thread is attached to an interpreter, whose state lives as long as it is attached.
    let id = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
    if id == MAIN {
        return Ok(());
    }
    Err(PyImportError::new_err(format!(
        "rocmforge: got sub-interpreter {id}, expected the main interpreter; import it there, or in a separate process"
    )))
}
