//! `rocmforge.inspect` and `rocmforge.check`. The structs hold the fields of the dataclasses of `rocmforge/reports.py`
//! with the same names.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::dataclass::{Instance, fields_of};
use super::engine::with_progress;
use super::logging::prepare;
use crate::diagnose::check::check_file;
use crate::gguf::{Array, GgufFile, Value};

#[derive(IntoPyObject)]
pub(super) struct ModelInfo<'py> {
    version: u32,
    metadata: Bound<'py, PyDict>,
    tensors: Vec<Instance<TensorInfo>>,
}

fields_of!(ModelInfo<'_>, "rocmforge.reports", "ModelInfo");

#[derive(IntoPyObject)]
struct TensorInfo {
    name: String,
    shape: Vec<u64>,
    #[pyo3(item("type"))]
    tensor_type: &'static str,
    bytes: usize,
}

fields_of!(TensorInfo, "rocmforge.reports", "TensorInfo");

/// What a file holds, whether or not an engine could run it.
///
/// Args:
///     model: Path of a GGUF file (the first one, for a split model).
///
/// Raises:
///     FileNotFoundError: There is no such file.
///     ModelFileError: It is no GGUF file, or its structure is damaged.
#[pyfunction]
pub(super) fn inspect(py: Python<'_>, model: PathBuf) -> PyResult<Instance<ModelInfo<'_>>> {
    let file = py.detach(|| GgufFile::open(&model))?;
    let metadata = PyDict::new(py);
    for (key, value) in file.metadata().iter() {
        metadata.set_item(key, to_python(py, value)?)?;
    }
    let tensors = file.tensors().iter().map(|info| TensorInfo {
        name: info.name.clone(),
        shape: info.shape.clone(),
        tensor_type: info.ggml_type.name(),
        bytes: info.num_bytes,
    });
    Ok(Instance(ModelInfo { version: file.version(), metadata, tensors: tensors.map(Instance).collect() }))
}

#[derive(IntoPyObject)]
pub(super) struct CheckReport {
    stages: Vec<Instance<StageReport>>,
}

fields_of!(CheckReport, "rocmforge.reports", "CheckReport");

#[derive(IntoPyObject)]
struct StageReport {
    stage: &'static str,
    summary: String,
    warnings: Vec<String>,
    problems: Vec<Instance<ProblemReport>>,
}

fields_of!(StageReport, "rocmforge.reports", "StageReport");

#[derive(IntoPyObject)]
struct ProblemReport {
    /// The name of the exception's class.
    error: String,
    message: String,
}

fields_of!(ProblemReport, "rocmforge.reports", "ProblemReport");

/// Reads a whole file and checks it: structure, architecture, tokenizer, chat template, every value of every tensor.
///
/// What is wrong with the file is told in the report and not raised.
///
/// Args:
///     model: Path of a GGUF file (the first one, for a split model).
///     progress: Called now and then with the bytes that are done, and all; what it raises ends the check.
#[pyfunction]
#[pyo3(signature = (model, *, progress=None))]
pub(super) fn check(py: Python<'_>, model: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<Instance<CheckReport>> {
    prepare(py)?;
    let stages = with_progress(py, progress, |report| Ok(check_file(&model, report)))?;
    let stages = stages.into_iter().map(|stage| {
        let problems = stage.problems.into_iter().map(PyErr::from).map(|problem| {
            let error = problem.get_type(py).name()?.to_string();
            Ok(Instance(ProblemReport { error, message: problem.value(py).to_string() }))
        });
        let problems = problems.collect::<PyResult<_>>()?;
        let (stage, summary, warnings) = (stage.name, stage.summary, stage.warnings);
        Ok(Instance(StageReport { stage, summary, warnings, problems }))
    });
    Ok(Instance(CheckReport { stages: stages.collect::<PyResult<_>>()? }))
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
