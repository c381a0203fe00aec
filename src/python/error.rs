//! The one mapping from `Error` to Python exceptions. The classes are defined in `rocmforge/errors.py`, because each
//! has two bases.

use std::path::Path;

use pyo3::PyErr;
use pyo3::exceptions::{PyFileNotFoundError, PyKeyboardInterrupt, PyOSError};

use crate::Error;

mod classes {
    use pyo3::import_exception;

    import_exception!(rocmforge.errors, RocmForgeError);
    import_exception!(rocmforge.errors, InvalidRequestError);
    import_exception!(rocmforge.errors, ModelFileError);
    import_exception!(rocmforge.errors, OutOfMemoryError);
    import_exception!(rocmforge.errors, DeviceError);
    import_exception!(rocmforge.errors, EngineDeadError);
    import_exception!(rocmforge.errors, QueueFullError);
}

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::InvalidRequest { .. } | Error::ChatTemplate { .. } => classes::InvalidRequestError::new_err(message),
            Error::FileNotFound { path } => {
                PyFileNotFoundError::new_err((libc::ENOENT, missing(&path), path.into_os_string()))
            }
            Error::ModelFile { .. } => classes::ModelFileError::new_err(message),
            Error::Io { .. } => PyOSError::new_err(message),
            Error::OutOfMemory { .. } => classes::OutOfMemoryError::new_err(message),
            Error::QueueFull { .. } => classes::QueueFullError::new_err(message),
            Error::Device { .. } => classes::DeviceError::new_err(message),
            // Only a progress callback of ours stops a load, and its own exception is raised instead.
            Error::Interrupted => PyKeyboardInterrupt::new_err(message),
            Error::EngineDead { .. } | Error::Forked { .. } => classes::EngineDeadError::new_err(message),
            Error::StepFailed { .. } | Error::Internal { .. } => classes::RocmForgeError::new_err(message),
        }
    }
}

/// Advice on a model that is not there; most who meet this gave a name in place of a path.
fn missing(path: &Path) -> &'static str {
    let text = path.to_string_lossy();
    let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let relative = !text.starts_with(['.', '/', '~']);
    match relative && !is_gguf && text.matches('/').count() > 0 {
        true => {
            "No such file or directory; expected the path of a .gguf file. Models are not downloaded by their names: \
             fetch a .gguf file first, for example with `hf download`"
        }
        false => "No such file or directory; expected the path of a .gguf file",
    }
}
