//! The vendor's matrix library in tests, represented by its stand-in, and the process in which it is tried.

use std::ffi::OsString;
use std::path::Path;

use parking_lot::{Mutex, MutexGuard};

use super::devices::{self, AMD_TARGET, CPU_TARGETS, DEEP_TARGETS};
use crate::config::{EngineArgs, GpuOptions};
use crate::{Device, helper};

/// Locks the library's misbehaviour, which is set for the whole process: only one test runs at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Does the job if `helper` started this process; otherwise it does nothing.
pub fn answer() {
    if EngineArgs::new("").with_env().unwrap().gpu.is_helper {
        helper::main()
    }
}

/// Returns the command that starts this program in a separate process, where the library misbehaves in this way. In
/// `module`, a test `helper_process` calls `answer`.
pub fn helper(module: &str, fault: &str) -> Option<Vec<OsString>> {
    let targets: Vec<_> = CPU_TARGETS.into_iter().chain([AMD_TARGET]).chain(DEEP_TARGETS).collect();
    let this = std::env::current_exe().unwrap();
    let settings = [
        format!("HIPSIM_TARGET={}", targets.join(",")),
        format!("HIPSIM_BLASLT={fault}"),
        "ROCMFORGE_TEST_HELPER=1".into(),
    ];
    let name = format!("{}::helper_process", module.split_once("::").unwrap().1);
    let arguments = ["--exact".to_owned(), name, "--nocapture".to_owned()];
    let command = [OsString::from("env")].into_iter().chain(settings.map(OsString::from)).chain([this.into()]);
    Some(command.chain(arguments.map(OsString::from)).collect())
}

/// Opens a device with the cache of verdicts in the folder `cache`, which is empty. Kernels that `compile` compiles,
/// without the library, are in a cache of all tests.
pub fn open_on(
    target: &str,
    helper: Option<Vec<OsString>>,
    cache: &Path,
    compile: impl FnOnce(&Device, &GpuOptions),
) -> Option<(Device, GpuOptions)> {
    let (device, options) = devices::open(target)?;
    compile(&device, &GpuOptions { vendor_blas: Some(false), ..options.clone() });
    let kernels = cache.join("kernels");
    std::fs::create_dir(&kernels).unwrap();
    let shared = options.cache_dir.as_ref().unwrap().join("kernels");
    std::fs::create_dir_all(&shared).unwrap();
    for entry in std::fs::read_dir(shared).unwrap() {
        let entry = entry.unwrap();
        // A file that another test is writing has a temporary name, and may be gone.
        let _ = std::fs::hard_link(entry.path(), kernels.join(entry.file_name()));
    }
    let options = GpuOptions { vendor_blas: Some(true), helper, cache_dir: Some(cache.into()), ..options };
    Some((device, options))
}
