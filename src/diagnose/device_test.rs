//! The parts of `rocmforge doctor --test`: the cases of every backend against references, repeated runs of split
//! kernels, the vendor's matrix library, and the speed of copies and launches.

use crate::config::{EngineArgs, GpuOptions, Tuned};
use crate::conformance::{self, Accuracy, Extent, Group, Tally, splits};
use crate::cpu::CpuLoader;
use crate::devices::{self, OpenDevice, resolve_isa, resolve_threads};
use crate::gpu::measure::{self, Bandwidth, Launches};
use crate::gpu::{Device, GpuLoader, LibrarySurvey, survey_library, trial};
use crate::{Error, Result};

/// Called with the name of each part before it runs; returns false to stop.
pub type Watch<'a> = &'a mut dyn FnMut(&str) -> bool;
/// Called with each group of cases after its last one.
pub type Done<'a> = &'a mut dyn FnMut(&Group);

/// Checks every op on every tensor type, on the device of the arguments, against references in double precision. Then
/// checks in batch-invariant mode that results have the same bits alone and together.
///
/// # Errors
/// `Interrupted` if `watch` returns false, and errors of the device. A wrong result is not an error; the groups count
/// it.
pub fn cases(args: &EngineArgs, extent: Extent, watch: Watch<'_>, done: Done<'_>) -> Result<Vec<Group>> {
    let args = args.clone().with_env()?;
    let mut tally = Tally::new(extent, watch).reporting(done);
    match devices::open(&args)? {
        OpenDevice::Gpu(device) => {
            let loader = |rows| trial::case_loader(&device, &args.gpu, rows);
            conformance::check_all(loader, Accuracy::GPU, &mut tally)?;
            let options = GpuOptions { batch_invariant: true, ..args.gpu.clone() };
            conformance::check_invariance(|rows| trial::case_loader(&device, &options, rows), &mut tally)?;
        }
        OpenDevice::Cpu => {
            let (threads, isa) = (resolve_threads(&args)?, resolve_isa(&args)?);
            let loader = |rows| Ok(CpuLoader::new(threads, rows)?.with_isa(isa));
            conformance::check_all(loader, Accuracy::CPU, &mut tally)?;
            conformance::check_invariance(loader, &mut tally)?;
        }
    }
    Ok(tally.into_groups())
}

/// Repeats each result that several thread blocks compute together `repetitions` times, and checks for identical bits.
///
/// # Errors
/// See `cases`; `Device` if there is no GPU.
pub fn repeats(
    args: &EngineArgs,
    extent: Extent,
    repetitions: usize,
    watch: Watch<'_>,
    done: Done<'_>,
) -> Result<Vec<Group>> {
    let (device, options) = gpu(args)?;
    let loader = |rows| -> Result<GpuLoader> { trial::case_loader(&device, &options, rows) };
    let mut tally = Tally::new(extent, watch).reporting(done);
    splits::check(loader, Accuracy::GPU, repetitions, &mut tally)?;
    Ok(tally.into_groups())
}

/// Repeats a captured graph as at a load, also where decode steps are not captured by default; the inner error is what
/// was wrong.
///
/// # Errors
/// See `repeats`.
pub fn repeat_graph(args: &EngineArgs) -> Result<std::result::Result<(), String>> {
    let (device, options) = gpu(args)?;
    trial::repeat_graph(&device, &options)
}

/// A GPU, and the numbers that kernels are launched by on it.
pub struct Tuning {
    /// The device's name in messages, and the family whose numbers they are.
    pub device: String,
    pub tuned_as: String,
    pub numbers: Vec<Tuned>,
}

/// The numbers that kernels are launched by on a GPU.
///
/// # Errors
/// See `repeats`.
pub fn tuning(args: &EngineArgs) -> Result<Tuning> {
    let (device, options) = gpu(args)?;
    let numbers = trial::tuned_numbers(&device, &options);
    Ok(Tuning { device: device.label().to_owned(), tuned_as: device.tuned_as(), numbers })
}

/// Checks the vendor's matrix library on shapes of common models, or returns why it is not used.
///
/// # Errors
/// See `repeats`.
pub fn matrix_library(
    args: &EngineArgs,
    extent: Extent,
    watch: Watch<'_>,
) -> Result<std::result::Result<LibrarySurvey, String>> {
    let (device, options) = gpu(args)?;
    survey_library(&device, &options, extent == Extent::Quick, watch)
}

/// Measures the speed of copies of buffers of `bytes` on the device and `host_bytes` on the host.
///
/// # Errors
/// See `repeats`.
pub fn bandwidth(args: &EngineArgs, bytes: u64, host_bytes: u64) -> Result<Bandwidth> {
    let (device, options) = gpu(args)?;
    measure::bandwidth(&device, &options, bytes, host_bytes)
}

/// Measures the speed of `count` launches of empty kernels.
///
/// # Errors
/// See `repeats`.
pub fn launches(args: &EngineArgs, count: usize) -> Result<Launches> {
    let (device, options) = gpu(args)?;
    measure::launches(&device, &options, count.max(1))
}

fn gpu(args: &EngineArgs) -> Result<(Device, GpuOptions)> {
    let args = args.clone().with_env()?;
    match devices::open(&args)? {
        OpenDevice::Gpu(device) => Ok((device, args.gpu)),
        OpenDevice::Cpu => {
            Err(Error::Device { device: "cpu".to_owned(), problem: "there is no GPU to test".to_owned() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DeviceKind, TunedNumber};
    use crate::gpu::testing::devices::{self, CPU_TARGETS};

    fn on(device: DeviceKind, gpu: GpuOptions) -> EngineArgs {
        EngineArgs { device, gpu, num_threads: Some(1), ..EngineArgs::new("") }
    }

    /// The simulated device passes: repeated results stay the same, and no memory stays allocated.
    #[test]
    fn a_gpu_is_tested() {
        let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
        let args = on(DeviceKind::Gpu, options);
        let groups = repeats(&args, Extent::Quick, 3, &mut |_| true, &mut |_| ()).unwrap();
        assert_eq!(groups.len(), 3);
        assert!(groups.iter().all(|group| group.wrong == 0 && group.cases > 0), "{groups:?}");
        let tuning = tuning(&args).unwrap();
        assert_eq!(tuning.numbers.len(), TunedNumber::ALL.len());
        assert!(tuning.device.contains("cpu-wave32") && tuning.tuned_as.contains("estimated"), "{}", tuning.tuned_as);
        assert_eq!(repeat_graph(&args).unwrap(), Ok(()));
        assert!(bandwidth(&args, 1 << 16, 1 << 12).unwrap().read > 0.0);
        assert_eq!(launches(&args, 0).unwrap().launches, 1);
        let library = matrix_library(&args, Extent::Quick, &mut |_| true).unwrap();
        assert_eq!(library.err().as_deref(), Some("the driver was given by its path"));
        assert_eq!(device.allocated_bytes(), 0);
    }

    /// The callback gets the name of a case before it runs, and can end the test.
    #[test]
    fn a_test_can_be_ended() {
        let mut seen = Vec::new();
        let mut watch = |what: &str| {
            seen.push(what.to_owned());
            seen.len() < 3
        };
        let ended = cases(&on(DeviceKind::Cpu, GpuOptions::default()), Extent::Quick, &mut watch, &mut |_| ());
        assert!(matches!(ended, Err(Error::Interrupted)));
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn what_needs_a_gpu_says_so() {
        let args = on(DeviceKind::Cpu, GpuOptions::default());
        let error = launches(&args, 1).unwrap_err().to_string();
        assert!(error.contains("there is no GPU to test"), "{error}");
        assert!(matches!(repeats(&args, Extent::Quick, 2, &mut |_| true, &mut |_| ()), Err(Error::Device { .. })));
    }
}
