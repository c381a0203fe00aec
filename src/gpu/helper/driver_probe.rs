//! The work of the process that probes AMD's driver (`probe`): it opens and uses a device like an engine.

use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;

use crate::Result;
use crate::capture::replay_check;
use crate::config::{GpuOptions, Platform};
use crate::driver::probe::{GOOD, STEP};
use crate::{Device, DeviceBuffer, Kernels, Stream};

/// Bytes of device memory to allocate and write.
const BYTES: u64 = 1 << 20;

/// Does a job of `probe`, and returns the verdict: `GOOD`, or the wrong numbers that a kernel has read.
///
/// # Errors
/// A failed call. The engine meets the same failure and reports it with more detail. A missing library is no error: the
/// verdict holds until one is installed.
pub(crate) fn run(job: &Value) -> std::result::Result<Vec<u8>, String> {
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    let options = GpuOptions {
        platform: Some(Platform::Amd),
        library: path(&job["library"]),
        rocm_path: path(&job["rocm_path"]),
        python_path: job["python_path"].as_array().into_iter().flatten().filter_map(path).collect(),
        device_index: job["device"].as_u64().and_then(|index| u32::try_from(index).ok()),
        ..GpuOptions::default()
    };
    match use_device(&options) {
        Ok(found) => Ok(found.map_or_else(String::into_bytes, |()| GOOD.to_vec())),
        Err(error) => Err(error.to_string()),
    }
}

fn use_device(options: &GpuOptions) -> Result<replay_check::Found> {
    begin("opening its library");
    if !Device::amd_is_installed(options) {
        return Ok(Ok(()));
    }
    begin("opening a device");
    let device = Device::open(options)?;
    begin("taking device memory");
    let (memory, stream) = (DeviceBuffer::new(&device, BYTES)?, Stream::new(&device)?);
    begin("writing device memory");
    // SAFETY: the memory is ours, and the stream is waited for before it is freed.
    let filled = unsafe { stream.fill(memory.slice(), 0) };
    stream.synchronize()?;
    filled?;
    begin("loading code");
    let kernels = Kernels::new(&device, options)?;
    let [copy_step, link_steps] = replay_check::kernel_ids();
    let functions = (kernels.embedded_function(&copy_step)?, kernels.embedded_function(&link_steps)?);
    // Compiling code takes longer than a probe may, and the compiler runs in a separate process anyway.
    let (Some(copy_step), Some(link_steps)) = functions else { return Ok(Ok(())) };
    begin("running kernels that read the host's memory");
    replay_check::check_eager([copy_step, link_steps], &stream, 1)
}

/// Announces the next step, in case the process dies in it.
fn begin(step: &str) {
    // An error here only shortens the report.
    let _ = writeln!(std::io::stderr(), "{STEP}{step}");
}
