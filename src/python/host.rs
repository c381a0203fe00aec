//! What the engine has to know of the interpreter that it runs in.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::config::EngineArgs;

/// Arguments for an engine in this interpreter, everything else by default.
pub(super) fn engine_args(py: Python<'_>, model: PathBuf) -> PyResult<EngineArgs> {
    let mut args = EngineArgs::new(model);
    args.hip.python_path = package_folders(py)?;
    Ok(args)
}

/// Where packages are installed. Other folders of the path, the current one for instance, may hold anybody's files: no
/// library is taken from there.
fn package_folders(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let path: Bound<'_, PyAny> = py.import("sys")?.getattr("path")?;
    // Entries that are no text are nobody's packages: Python itself passes over them.
    let folders = path.try_iter()?.filter_map(|entry| entry.ok()?.extract::<PathBuf>().ok());
    let installed = |folder: &PathBuf| {
        folder.is_absolute() && folder.file_name().is_some_and(|n| n == "site-packages" || n == "dist-packages")
    };
    Ok(folders.filter(installed).collect())
}
