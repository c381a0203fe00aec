//! `rocmforge.doctor`. The structs hold the fields of the dataclasses of `rocmforge/reports.py` with the same names.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::arrays::name_of;
use super::dataclass::{Instance, fields_of};
use super::engine::with_progress;
use super::host::engine_args;
use super::logging::{flush, prepare};
use super::settings::args_with;
use crate::backend::cpu::simd::Isa;
use crate::backend::gpu::{KernelRow, Listed, Origin, Survey};
use crate::config::{DeviceKind, EngineArgs, Platform};
use crate::diagnose::doctor::{Gpu, cpu_features, cpu_kernels, embedded_kernels, gpu, gpus, taken_device};
use crate::engine::LoadProgress;

#[derive(IntoPyObject)]
pub(super) struct DoctorReport<'py> {
    architecture: &'static str,
    embedded_targets: Vec<&'static str>,
    num_cpus: usize,
    /// As it was asked for.
    device: String,
    /// What that comes to: `cpu`, `gpu` or `none`.
    takes: &'static str,
    gpu_drivers: Vec<Instance<DriverReport>>,
    gpus: Vec<Instance<GpuReport>>,
    /// The CPU, then the GPU.
    devices: [Bound<'py, PyAny>; 2],
    cpu_features: Bound<'py, PyDict>,
    kernels: Vec<Instance<CpuKernelReport>>,
}

fields_of!(DoctorReport<'_>, "rocmforge.reports", "DoctorReport");

/// The library of a platform's driver, or why there is none to use.
#[derive(IntoPyObject)]
struct DriverReport {
    platform: &'static str,
    library: Option<String>,
    problem: Option<String>,
}

fields_of!(DriverReport, "rocmforge.reports", "DriverReport");

#[derive(IntoPyObject)]
struct GpuReport {
    device: String,
    platform: &'static str,
    name: String,
    arch: String,
    integrated: bool,
    taken: bool,
}

fields_of!(GpuReport, "rocmforge.reports", "GpuReport");

/// The CPU, or a GPU that is not used; the detail says why.
#[derive(IntoPyObject)]
struct DeviceReport {
    name: &'static str,
    detail: String,
}

fields_of!(DeviceReport, "rocmforge.reports", "DeviceReport");

#[derive(IntoPyObject)]
struct UsableGpuReport {
    name: &'static str,
    detail: String,
    kernels: Vec<Instance<GpuKernelReport>>,
    matrix_library: String,
    decode_steps: String,
}

fields_of!(UsableGpuReport, "rocmforge.reports", "UsableGpuReport");

/// What serves an op on weights of a type, or on activations, on the GPU.
#[derive(IntoPyObject)]
struct GpuKernelReport {
    tensor_type: Option<&'static str>,
    stored_as: Option<&'static str>,
    op: String,
    kernels: Vec<String>,
    unit: String,
    matrix_unit: Option<&'static str>,
    code: Option<String>,
    compile_seconds: Option<f64>,
    problem: Option<String>,
}

fields_of!(GpuKernelReport, "rocmforge.reports", "GpuKernelReport");

/// What serves an op on weights of a type, or on activations, on the CPU.
#[derive(IntoPyObject)]
struct CpuKernelReport {
    tensor_type: &'static str,
    op: &'static str,
    kernel: &'static str,
}

fields_of!(CpuKernelReport, "rocmforge.reports", "CpuKernelReport");

/// The targets of AMD GPUs that this build carries kernels for.
#[pyfunction]
pub(super) fn embedded_targets() -> Vec<&'static str> {
    embedded_kernels().collect()
}

/// Whether there may be a device of that name: `InvalidRequestError` listing the names, where it is none.
#[pyfunction]
pub(super) fn check_device(py: Python<'_>, device: &str) -> PyResult<()> {
    Ok(engine_args(py, PathBuf::new())?.choose_device("device", device)?)
}

/// What this machine offers.
///
/// Loads every kernel onto the GPU that `device` names, if there is one, and compiles those without code. With the CPU
/// no driver is opened.
///
/// Args:
///     progress: Called with the units of kernels that are done, and all; what it raises ends the report.
///     **settings: `device` and other arguments of `LLM`, as they would be given to it; those that do not concern a
///         device change nothing.
///
/// Raises:
///     InvalidRequestError: A setting is out of its range, or a variable of the environment cannot be read.
#[pyfunction]
#[pyo3(signature = (*, progress=None, **settings))]
pub(super) fn doctor<'py>(
    py: Python<'py>,
    progress: Option<Py<PyAny>>,
    settings: Option<&Bound<'py, PyDict>>,
) -> PyResult<Instance<DoctorReport<'py>>> {
    prepare(py)?;
    let args = args_with(py, PathBuf::new(), settings)?;
    let asked = settings.map(|settings| settings.get_item("device")).transpose()?.flatten();
    let asked = asked.map(|device| name_of("device", &device)).transpose()?;
    let device = asked.unwrap_or_else(|| args.device.name().to_owned());
    let args = args.with_env()?;
    let isa = Isa::named_or_best(args.cpu_isa.as_deref())?;
    let (drivers, gpu) = with_progress(py, progress, |report| look_for_gpus(&args, report))?;
    flush(py);
    let cpu_features = cpu_features().into_iter().try_fold(PyDict::new(py), |features, feature| {
        features.set_item(feature.name, feature.available)?;
        PyResult::Ok(features)
    });
    let kernels = cpu_kernels(isa)?.into_iter();
    let kernels = kernels.map(|row| CpuKernelReport { tensor_type: row.tensor_type, op: row.op, kernel: row.kernel });
    let cpu = DeviceReport { name: "cpu", detail: format!("instruction set in use: {}", isa.name()) };
    Ok(Instance(DoctorReport {
        architecture: std::env::consts::ARCH,
        embedded_targets: embedded_targets(),
        num_cpus: std::thread::available_parallelism().map_or(1, usize::from),
        device,
        takes: taken_device(args.device, gpu.is_ok()),
        gpu_drivers: drivers.iter().map(DriverReport::from).map(Instance).collect(),
        gpus: gpu_reports(&drivers, gpu.as_ref().ok().map(|gpu| (gpu.platform, gpu.index))),
        devices: [Instance(cpu).into_pyobject(py)?, gpu_report(py, gpu)?],
        cpu_features: cpu_features?,
        kernels: kernels.map(Instance).collect(),
    }))
}

/// What `look_for_gpus` finds: drivers with their devices, and the GPU that is used, or why none is.
type Found = (Vec<Survey>, Result<Gpu, String>);

fn look_for_gpus(args: &EngineArgs, report: &mut dyn FnMut(LoadProgress) -> bool) -> crate::Result<Found> {
    Ok(match args.device {
        DeviceKind::Cpu => (Vec::new(), Err("not looked for: the CPU is asked for".to_owned())),
        DeviceKind::Auto | DeviceKind::Gpu => {
            (gpus(args)?, gpu(args, report).map_err(|error| format!("not usable: {error}")))
        }
    })
}

impl From<&Survey> for DriverReport {
    fn from(driver: &Survey) -> Self {
        Self {
            platform: driver.platform.name(),
            library: driver.devices.as_ref().ok().map(|(library, _)| library.display().to_string()),
            problem: driver.devices.as_ref().err().cloned(),
        }
    }
}

fn gpu_reports(drivers: &[Survey], taken: Option<(Platform, u32)>) -> Vec<Instance<GpuReport>> {
    let listed = drivers.iter().filter_map(|driver| Some((driver.platform, &driver.devices.as_ref().ok()?.1)));
    let listed = listed.flat_map(|(platform, devices)| devices.iter().map(move |device| (platform, device)));
    let report = |(platform, gpu): (Platform, &Listed)| GpuReport {
        device: format!("gpu:{}", gpu.index),
        platform: platform.name(),
        name: gpu.name.clone(),
        arch: gpu.arch.clone(),
        integrated: gpu.integrated,
        taken: taken == Some((platform, gpu.index)),
    };
    listed.map(report).map(Instance).collect()
}

fn gpu_report(py: Python<'_>, gpu: Result<Gpu, String>) -> PyResult<Bound<'_, PyAny>> {
    let name = "gpu";
    match gpu {
        Err(detail) => Instance(DeviceReport { name, detail }).into_pyobject(py),
        Ok(gpu) => {
            let Gpu { detail, matrix_library, decode_steps, .. } = gpu;
            let kernels = gpu.kernels.iter().map(GpuKernelReport::from).map(Instance).collect();
            Instance(UsableGpuReport { name, detail, kernels, matrix_library, decode_steps }).into_pyobject(py)
        }
    }
}

impl From<&KernelRow> for GpuKernelReport {
    fn from(row: &KernelRow) -> Self {
        let origin = row.origin.as_ref();
        let compile_seconds = match origin {
            Ok(Origin::Compiled { seconds, .. }) => Some(*seconds),
            _ => None,
        };
        Self {
            tensor_type: row.weights.map(|(in_file, _)| in_file.name()),
            stored_as: row.weights.map(|(_, on_device)| on_device.name()),
            op: row.op.clone(),
            kernels: row.kernels.clone(),
            unit: row.unit.name(),
            matrix_unit: row.matrix_unit.map(|unit| unit.name()),
            code: origin.map(ToString::to_string).ok(),
            compile_seconds,
            problem: origin.err().map(ToString::to_string),
        }
    }
}
