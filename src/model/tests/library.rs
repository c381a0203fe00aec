//! A device with the vendor's matrix library, represented by its stand-in.

use crate::config::GpuOptions;
use crate::gpu::Device;
use crate::gpu::testing::devices::CPU_TARGETS;
use crate::gpu::testing::library::{self, answer};

/// Does the job if `open` started this test in a separate process; otherwise it does nothing.
#[test]
fn helper_process() {
    answer();
}

/// Opens a device with the library and a separate cache of its verdicts.
pub(super) fn open() -> Option<(Device, GpuOptions, tempfile::TempDir)> {
    let cache = tempfile::tempdir().unwrap();
    let helper = library::helper(module_path!(), "");
    let (device, options) = library::open_on(CPU_TARGETS[0], helper, cache.path(), |_, _| ())?;
    Some((device, options, cache))
}
