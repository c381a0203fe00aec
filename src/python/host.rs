//! Facts about the interpreter in which the engine runs.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

use crate::config::EngineArgs;

/// Returns arguments for an engine in this interpreter, with defaults for everything else.
pub(super) fn engine_args(py: Python<'_>, model: PathBuf) -> PyResult<EngineArgs> {
    let mut args = EngineArgs::new(model);
    args.gpu.python_path = package_folders(py)?;
    args.gpu.helper = helper(py);
    Ok(args)
}

/// Loads this module by its path, independent of the new interpreter's search path, and nothing else.
const HELPER: &str = "import importlib.util, sys
spec = importlib.util.spec_from_file_location('rocmforge._rocmforge', sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run_helper()";

/// Returns the command that runs the helper, a new interpreter process for work that may crash. `None` if no
/// interpreter can be started. This holds for an application that is frozen into one file (`sys.frozen`), and for a
/// program that embeds Python with an empty `sys.executable`. It also holds if this module is not a file.
fn helper(py: Python<'_>) -> Option<Vec<OsString>> {
    let text = |module: &str, name: &str| py.import(module).ok()?.getattr(name).ok()?.extract::<OsString>().ok();
    if py.import("sys").ok()?.hasattr("frozen").ok()? {
        return None;
    }
    let executable = text("sys", "executable").filter(|path| !path.is_empty())?;
    let file = text("rocmforge._rocmforge", "__file__")?;
    // Isolated mode, without site initialization, because the helper needs neither.
    let arguments = ["-I", "-S", "-c", HELPER].map(OsString::from);
    Some([executable].into_iter().chain(arguments).chain([file]).collect())
}

/// Does the job on the standard input and ends the process, in an interpreter that was started only for it.
#[pyfunction]
pub(super) fn run_helper() {
    crate::gpu::helper::main()
}

/// Returns the folders of installed packages. Other folders of the path, such as the current one, may hold anyone's
/// files, so no library is loaded from there.
fn package_folders(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let path: Bound<'_, PyAny> = py.import("sys")?.getattr("path")?;
    // Python also skips entries that are not text.
    let folders = path.try_iter()?.filter_map(|entry| entry.ok()?.extract::<PathBuf>().ok());
    let installed = |folder: &PathBuf| {
        folder.is_absolute() && folder.file_name().is_some_and(|n| n == "site-packages" || n == "dist-packages")
    };
    Ok(folders.filter(installed).collect())
}
