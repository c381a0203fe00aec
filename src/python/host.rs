//! Facts about the interpreter that the engine runs in.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

use crate::config::EngineArgs;

/// Arguments for an engine in this interpreter, everything else by default.
pub(super) fn engine_args(py: Python<'_>, model: PathBuf) -> PyResult<EngineArgs> {
    let mut args = EngineArgs::new(model);
    args.gpu.python_path = package_folders(py)?;
    args.gpu.helper = helper(py);
    Ok(args)
}

/// Loads this module by its path, whatever the path of the new interpreter is, and nothing else.
const HELPER: &str = "import importlib.util, sys
spec = importlib.util.spec_from_file_location('rocmforge._rocmforge', sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run_helper()";

/// The interpreter in a process of its own, which does what may crash. `None` where there is no interpreter to start:
/// in an application that was frozen into one file (`sys.frozen`), or a program that has Python in it and says so by an
/// empty `sys.executable`; and where this module is no file.
fn helper(py: Python<'_>) -> Option<Vec<OsString>> {
    let text = |module: &str, name: &str| py.import(module).ok()?.getattr(name).ok()?.extract::<OsString>().ok();
    if py.import("sys").ok()?.hasattr("frozen").ok()? {
        return None;
    }
    let executable = text("sys", "executable").filter(|path| !path.is_empty())?;
    let file = text("rocmforge._rocmforge", "__file__")?;
    // Isolated, and without the packages' own start-up code: nothing of either is needed.
    let arguments = ["-I", "-S", "-c", HELPER].map(OsString::from);
    Some([executable].into_iter().chain(arguments).chain([file]).collect())
}

/// Does the job on the standard input and ends the process: what the interpreter that was started for it calls.
#[pyfunction]
pub(super) fn run_helper() {
    crate::backend::gpu::helper::main()
}

/// Folders in which packages are installed. Other folders of the path, the current one for instance, may hold anybody's
/// files: no library is taken from there.
fn package_folders(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let path: Bound<'_, PyAny> = py.import("sys")?.getattr("path")?;
    // Entries that are no text are nobody's packages: Python itself passes over them.
    let folders = path.try_iter()?.filter_map(|entry| entry.ok()?.extract::<PathBuf>().ok());
    let installed = |folder: &PathBuf| {
        folder.is_absolute() && folder.file_name().is_some_and(|n| n == "site-packages" || n == "dist-packages")
    };
    Ok(folders.filter(installed).collect())
}
