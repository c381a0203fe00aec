//! Functions behind `rocmforge inspect` and `check`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Error;
use crate::diagnose::check::{check_file, tasks};
use crate::diagnose::support::{Support, support};
use crate::gguf::{Array, GgufFile, Value};
use crate::python::engine::with_progress;
use crate::python::logging::prepare;

/// A `FileReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(in crate::python) struct FileReport<'py> {
    version: u32,
    tasks: Vec<&'static str>,
    metadata: Bound<'py, PyDict>,
    tensors: Vec<TensorReport>,
}

/// A `SupportReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(in crate::python) struct SupportReport {
    cpu: Option<String>,
    gpu: Option<String>,
}

/// A `TensorReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
struct TensorReport {
    name: String,
    shape: Vec<u64>,
    #[pyo3(item("type"))]
    tensor_type: &'static str,
    bytes: usize,
}

/// Returns the version, tasks, metadata and tensors of a file that passes the structural checks.
#[pyfunction]
pub(in crate::python) fn inspect_gguf(py: Python<'_>, model: PathBuf) -> PyResult<FileReport<'_>> {
    let (file, tasks) = py.detach(|| {
        let file = GgufFile::open(&model)?;
        let tasks = tasks(&file);
        Ok::<_, Error>((file, tasks))
    })?;
    let metadata = PyDict::new(py);
    for (key, value) in file.metadata().iter() {
        metadata.set_item(key, to_python(py, value)?)?;
    }
    let tensors = file.tensors().iter().map(|info| TensorReport {
        name: info.name.clone(),
        shape: info.shape.clone(),
        tensor_type: info.ggml_type.name(),
        bytes: info.num_bytes,
    });
    Ok(FileReport { version: file.version(), tasks, metadata, tensors: tensors.collect() })
}

/// Returns the kinds of devices that can run a file; needs no device.
#[pyfunction]
pub(in crate::python) fn device_support(py: Python<'_>, model: PathBuf) -> PyResult<SupportReport> {
    prepare(py)?;
    let Support { cpu, gpu } = py.detach(|| GgufFile::open(&model).map(|file| support(&file)))?;
    let [cpu, gpu] = [cpu, gpu].map(|problem| problem.map(|problem| problem.to_string()));
    Ok(SupportReport { cpu, gpu })
}

/// A `StageReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
pub(in crate::python) struct StageReport {
    stage: &'static str,
    summary: String,
    warnings: Vec<String>,
    problems: Vec<ProblemReport>,
}

/// A `ProblemReport` of `rocmforge/reports.py`.
#[derive(IntoPyObject)]
struct ProblemReport {
    /// The name of the exception's class.
    error: String,
    message: String,
}

/// Reads and checks a whole file; `progress` is called with the bytes done and the total.
#[pyfunction]
#[pyo3(signature = (model, progress=None))]
pub(in crate::python) fn check_gguf(
    py: Python<'_>,
    model: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<StageReport>> {
    prepare(py)?;
    let stages = with_progress(py, progress, |report| Ok(check_file(&model, report)))?;
    let stages = stages.into_iter().map(|stage| {
        let problems = stage.problems.into_iter().map(PyErr::from).map(|problem| {
            let error = problem.get_type(py).name()?.to_string();
            Ok(ProblemReport { error, message: problem.value(py).to_string() })
        });
        let problems = problems.collect::<PyResult<_>>()?;
        Ok(StageReport { stage: stage.name, summary: stage.summary, warnings: stage.warnings, problems })
    });
    stages.collect()
}

fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! convert {
        ($value:expr, $($variant:path),*) => {
            match $value { $($variant(inner) => Ok(inner.clone().into_pyobject(py)?.to_owned().into_any()),)*
                Value::Array(array) => array_to_python(py, array),
            }
        };
    }
    use Value::{Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
    convert!(value, U8, I8, U16, I16, U32, I32, F32, Bool, String, U64, I64, F64)
}

fn array_to_python<'py>(py: Python<'py>, array: &Array) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! convert {
        ($array:expr, $($variant:path),*) => {
            match $array { $($variant(items) => Ok(pyo3::types::PyList::new(py, items)?.into_any()),)* }
        };
    }
    use Array::{Bool, F32, F64, I8, I16, I32, I64, String, U8, U16, U32, U64};
    convert!(array, U8, I8, U16, I16, U32, I32, F32, Bool, String, U64, I64, F64)
}
