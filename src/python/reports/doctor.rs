//! Functions behind `rocmforge doctor`. The structs are the typed dictionaries of `rocmforge/reports.py` with the same
//! names. `rocmforge doctor --json` prints them.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Error;
use crate::config::{DeviceKind, EngineArgs, Platform};
use crate::cpu::simd::Isa;
use crate::diagnose::doctor::{Gpu, cpu_features, cpu_kernels, embedded_kernels, gpu, gpus, system, taken_device};
use crate::engine::LoadProgress;
use crate::gpu::{KernelRow, KernelType, Listed, Origin, Survey};
use crate::python::engine::with_progress;
use crate::python::host::engine_args;
use crate::python::logging::{flush, prepare};

#[derive(IntoPyObject)]
pub(in crate::python) struct DoctorReport<'py> {
    architecture: &'static str,
    embedded_targets: Vec<&'static str>,
    num_cpus: usize,
    /// The device's name as the user gave it.
    device: String,
    /// The device that the name selects here: `cpu`, `gpu` or `none`.
    takes: &'static str,
    /// Facts of the system that concern AMD GPUs, one per line.
    system: Vec<String>,
    gpu_drivers: Vec<DriverReport>,
    gpus: Vec<GpuReport>,
    /// The CPU, then the GPU.
    devices: [DeviceReport; 2],
    cpu_features: Bound<'py, PyDict>,
    kernels: Vec<CpuKernelReport>,
}

/// The library of a platform's driver, or why there is none to use.
#[derive(IntoPyObject)]
struct DriverReport {
    platform: &'static str,
    library: Option<String>,
    problem: Option<String>,
}

#[derive(IntoPyObject)]
struct GpuReport {
    device: String,
    platform: &'static str,
    name: String,
    arch: String,
    /// Bytes of its memory.
    memory: u64,
    integrated: bool,
    taken: bool,
}

#[derive(IntoPyObject)]
enum DeviceReport {
    /// The CPU, or a GPU that is not used; the detail gives the reason.
    Named { name: &'static str, detail: String },
    UsableGpu {
        name: &'static str,
        detail: String,
        tuned_as: String,
        kernels: Vec<GpuKernelReport>,
        matrix_library: String,
        decode_steps: String,
    },
}

/// The GPU's kernels for an op on weights of a type, or on activations.
#[derive(IntoPyObject)]
struct GpuKernelReport {
    tensor_type: Option<&'static str>,
    op: String,
    kernels: Vec<String>,
    unit: String,
    matrix_unit: Option<&'static str>,
    code: Option<String>,
    compile_seconds: Option<f64>,
    problem: Option<String>,
}

/// The CPU's kernel for an op on weights of a type, or on activations.
#[derive(IntoPyObject)]
struct CpuKernelReport {
    tensor_type: &'static str,
    op: &'static str,
    kernel: &'static str,
}

/// Returns the targets of AMD GPUs that this build carries kernels for.
#[pyfunction]
pub(in crate::python) fn embedded_targets() -> Vec<&'static str> {
    embedded_kernels().collect()
}

/// Returns the requested device, available or not: `device`, or for `auto` the environment variable's value. Raises
/// `InvalidRequestError`, which lists the names, for an unknown name.
#[pyfunction]
pub(in crate::python) fn chosen_device(py: Python<'_>, device: &str) -> PyResult<String> {
    let mut args = engine_args(py, PathBuf::new())?;
    args.choose_device("device", device)?;
    Ok(args.choose_device_of_env()?.unwrap_or_else(|| device.to_owned()))
}

/// Reports the devices and kernels of this machine, with the GPU that `device` names. For the CPU, no driver is opened.
/// `progress(done, total)` counts the kernel units that were loaded or compiled for the GPU.
#[pyfunction]
#[pyo3(signature = (device="auto", progress=None))]
pub(in crate::python) fn doctor<'py>(
    py: Python<'py>,
    device: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<DoctorReport<'py>> {
    prepare(py)?;
    let mut args = engine_args(py, PathBuf::new())?;
    args.choose_device("device", device)?;
    let args = args.with_env()?;
    let (drivers, gpu) = with_progress(py, progress, |report| look_for_gpus(&args, report))?;
    flush(py);
    let cpu_features = cpu_features().into_iter().try_fold(PyDict::new(py), |features, feature| {
        features.set_item(feature.name, feature.available)?;
        PyResult::Ok(features)
    });
    let kernels = cpu_kernels()?.into_iter();
    let kernels = kernels.map(|row| CpuKernelReport { tensor_type: row.tensor_type, op: row.op, kernel: row.kernel });
    let cpu = format!("instruction set in use: {}", Isa::detect().name());
    Ok(DoctorReport {
        architecture: std::env::consts::ARCH,
        embedded_targets: embedded_targets(),
        num_cpus: std::thread::available_parallelism().map_or(1, usize::from),
        device: device.to_owned(),
        takes: taken_device(args.device, gpu.is_ok()),
        // An NVIDIA GPU in use needs no facts about AMD GPUs.
        system: match &gpu {
            Ok(gpu) if gpu.platform == Platform::Nvidia => Vec::new(),
            _ => system(&args)?,
        },
        gpu_drivers: drivers.iter().map(DriverReport::from).collect(),
        gpus: gpu_reports(&drivers, gpu.as_ref().ok().map(|gpu| (gpu.platform, gpu.index))),
        devices: [DeviceReport::Named { name: "cpu", detail: cpu }, gpu.into()],
        cpu_features: cpu_features?,
        kernels: kernels.collect(),
    })
}

/// The result of `look_for_gpus`: drivers with their devices, and the GPU in use, or the reason for none.
type Found = (Vec<Survey>, Result<Gpu, String>);

fn look_for_gpus(args: &EngineArgs, report: &mut dyn FnMut(LoadProgress) -> bool) -> crate::Result<Found> {
    Ok(match args.device {
        DeviceKind::Cpu => (Vec::new(), Err("not looked for: the CPU is asked for".to_owned())),
        DeviceKind::Auto | DeviceKind::Gpu => {
            let unusable = |error| match error {
                // The report's line begins with the device.
                Error::Device { problem, .. } => format!("not usable: {problem}"),
                error => format!("not usable: {error}"),
            };
            (gpus(args)?, gpu(args, report).map_err(unusable))
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

fn gpu_reports(drivers: &[Survey], taken: Option<(Platform, u32)>) -> Vec<GpuReport> {
    let listed = drivers.iter().filter_map(|driver| Some((driver.platform, &driver.devices.as_ref().ok()?.1)));
    let listed = listed.flat_map(|(platform, devices)| devices.iter().map(move |device| (platform, device)));
    let report = |(platform, gpu): (Platform, &Listed)| GpuReport {
        device: format!("gpu:{}", gpu.index),
        platform: platform.name(),
        name: gpu.name.clone(),
        arch: gpu.arch.clone(),
        memory: gpu.memory,
        integrated: gpu.integrated,
        taken: taken == Some((platform, gpu.index)),
    };
    listed.map(report).collect()
}

impl From<Result<Gpu, String>> for DeviceReport {
    fn from(gpu: Result<Gpu, String>) -> Self {
        match gpu {
            Ok(gpu) => Self::UsableGpu {
                name: "gpu",
                detail: gpu.detail,
                tuned_as: gpu.tuned_as,
                kernels: gpu.kernels.iter().map(GpuKernelReport::from).collect(),
                matrix_library: gpu.matrix_library,
                decode_steps: gpu.decode_steps,
            },
            Err(detail) => Self::Named { name: "gpu", detail },
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
            tensor_type: row.weights.map(KernelType::name),
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
