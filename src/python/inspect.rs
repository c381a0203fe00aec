//! Functions behind `rocmforge inspect`, `check` and `doctor`.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::engine::with_progress;
use super::host::engine_args;
use super::logging::{flush, prepare};
use crate::backend::cpu::simd::Isa;
use crate::backend::gpu::{KernelRow, Listed, Origin, Survey};
use crate::config::{DeviceKind, Platform};
use crate::engine::check::check_file;
use crate::engine::doctor::{cpu_features, cpu_kernels, embedded_kernels, gpu, gpus, taken_device};
use crate::gguf::{Array, GgufFile, Value};

/// `(name, shape, type, bytes)`.
type Tensor = (String, Vec<u64>, &'static str, usize);
/// `(name, summary, warnings, [(class of the problem, message)])`.
type Stage = (&'static str, String, Vec<String>, Vec<(String, String)>);

/// `(version, metadata, tensors)` of a file that passes the structural checks.
#[pyfunction]
pub(super) fn inspect_gguf(py: Python<'_>, model: PathBuf) -> PyResult<(u32, Bound<'_, PyDict>, Vec<Tensor>)> {
    let file = py.detach(|| GgufFile::open(&model))?;
    let metadata = PyDict::new(py);
    for (key, value) in file.metadata().iter() {
        metadata.set_item(key, to_python(py, value)?)?;
    }
    let tensors = file
        .tensors()
        .iter()
        .map(|info| (info.name.clone(), info.shape.clone(), info.ggml_type.name(), info.num_bytes));
    Ok((file.version(), metadata, tensors.collect()))
}

/// The targets of AMD GPUs that this build carries kernels for.
#[pyfunction]
pub(super) fn embedded_targets() -> Vec<&'static str> {
    embedded_kernels().collect()
}

/// Reads and checks the whole file; `progress(done, total)` counts bytes.
#[pyfunction]
#[pyo3(signature = (model, progress=None))]
pub(super) fn check_gguf(py: Python<'_>, model: PathBuf, progress: Option<Py<PyAny>>) -> PyResult<Vec<Stage>> {
    prepare(py)?;
    let stages = with_progress(py, progress, |report| Ok(check_file(&model, report)))?;
    let stages = stages.into_iter().map(|stage| {
        let problems = stage.problems.into_iter().map(PyErr::from).map(|error| {
            let class = error.get_type(py).name()?.to_string();
            Ok((class, error.value(py).to_string()))
        });
        Ok((stage.name, stage.summary, stage.warnings, problems.collect::<PyResult<_>>()?))
    });
    stages.collect()
}

/// Whether there may be a device of that name: `InvalidRequestError` listing the names, where it is none.
#[pyfunction]
pub(super) fn check_device(py: Python<'_>, device: &str) -> PyResult<()> {
    Ok(engine_args(py, PathBuf::new())?.choose_device("device", device)?)
}

/// What this machine offers, as `rocmforge doctor --json` prints it, with the GPU that `device` names. With the CPU no
/// driver is opened. `progress(done, total)` counts the units of kernels that were loaded, or compiled, for the GPU.
#[pyfunction]
#[pyo3(signature = (device="auto", progress=None))]
pub(super) fn doctor<'py>(py: Python<'py>, device: &str, progress: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyDict>> {
    prepare(py)?;
    let mut args = engine_args(py, PathBuf::new())?;
    args.choose_device("device", device)?;
    let args = args.with_env()?;
    let features = PyDict::new(py);
    cpu_features().into_iter().try_for_each(|feature| features.set_item(feature.name, feature.available))?;
    let cpu = PyDict::new(py);
    cpu.set_item("name", "cpu")?;
    cpu.set_item("detail", format!("instruction set in use: {}", Isa::detect().name()))?;
    let report = PyDict::new(py);
    report.set_item("architecture", std::env::consts::ARCH)?;
    report.set_item("embedded_targets", embedded_targets())?;
    report.set_item("num_cpus", std::thread::available_parallelism().map_or(1, usize::from))?;
    let hip = PyDict::new(py);
    hip.set_item("name", "hip")?;
    let (drivers, gpu) = match args.device {
        DeviceKind::Cpu => (Vec::new(), Err("not looked for: the CPU is asked for".to_owned())),
        DeviceKind::Auto | DeviceKind::Gpu => {
            let (drivers, gpu) = with_progress(py, progress, |report| Ok((gpus(&args)?, gpu(&args, report))))?;
            (drivers, gpu.map_err(|error| format!("not usable: {error}")))
        }
    };
    flush(py);
    report.set_item("device", device)?;
    report.set_item("takes", taken_device(args.device, gpu.is_ok()))?;
    let taken = gpu.as_ref().ok().map(|gpu| (gpu.platform, gpu.index));
    report.set_item("gpu_drivers", drivers.iter().map(|d| gpu_driver(py, d)).collect::<PyResult<Vec<_>>>()?)?;
    let listed = drivers.iter().filter_map(|driver| Some((driver.platform, &driver.devices.as_ref().ok()?.1)));
    let listed = listed.flat_map(|(platform, devices)| devices.iter().map(move |device| (platform, device)));
    let listed = listed.map(|(platform, gpu)| gpu_row(py, platform, gpu, taken == Some((platform, gpu.index))));
    report.set_item("gpus", listed.collect::<PyResult<Vec<_>>>()?)?;
    match gpu {
        Ok(gpu) => {
            hip.set_item("detail", gpu.detail)?;
            let rows = gpu.kernels.iter().map(|row| kernel_row(py, row));
            hip.set_item("kernels", rows.collect::<PyResult<Vec<_>>>()?)?;
            hip.set_item("matrix_library", gpu.matrix_library)?;
            hip.set_item("decode_steps", gpu.decode_steps)?;
        }
        Err(detail) => hip.set_item("detail", detail)?,
    }
    report.set_item("devices", [cpu, hip])?;
    report.set_item("cpu_features", features)?;
    let kernels = cpu_kernels()?.into_iter().map(|k| (k.tensor_type, k.op, k.kernel));
    report.set_item("kernels", kernels.collect::<Vec<_>>())?;
    Ok(report)
}

/// The library of a platform's driver, or why there is none to use.
fn gpu_driver<'py>(py: Python<'py>, driver: &Survey) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("platform", driver.platform.name())?;
    dict.set_item("library", driver.devices.as_ref().ok().map(|(library, _)| library.display().to_string()))?;
    dict.set_item("problem", driver.devices.as_ref().err())?;
    Ok(dict)
}

fn gpu_row<'py>(py: Python<'py>, platform: Platform, gpu: &Listed, taken: bool) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("device", format!("hip:{}", gpu.index))?;
    dict.set_item("platform", platform.name())?;
    dict.set_item("name", &gpu.name)?;
    dict.set_item("arch", &gpu.arch)?;
    dict.set_item("integrated", gpu.integrated)?;
    dict.set_item("taken", taken)?;
    Ok(dict)
}

fn kernel_row<'py>(py: Python<'py>, row: &KernelRow) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("tensor_type", row.weights.map(|(in_file, _)| in_file.name()))?;
    dict.set_item("stored_as", row.weights.map(|(_, on_device)| on_device.name()))?;
    dict.set_item("op", &row.op)?;
    dict.set_item("kernels", &row.kernels)?;
    dict.set_item("unit", row.unit.name())?;
    dict.set_item("matrix_unit", row.matrix_unit.map(|unit| unit.name()))?;
    let origin = row.origin.as_ref();
    dict.set_item("code", origin.map(ToString::to_string).ok())?;
    let seconds = match origin {
        Ok(Origin::Compiled { seconds, .. }) => Some(seconds),
        _ => None,
    };
    dict.set_item("compile_seconds", seconds)?;
    dict.set_item("problem", origin.err().map(ToString::to_string))?;
    Ok(dict)
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
