//! A device and what happened to it: every call of the driver goes through here.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::driver::{self, DeviceProperties, Driver, DriverError, Failure, MemoryInfo, Outcome, Survey};
use super::tuning::Tuning;
use crate::backend::host_memory::HostMemory;
use crate::config::GpuOptions;
use crate::{Error, Result};

/// An opened device. Clones are the same device; it closes with the last one, and everything made on it holds one.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Box<dyn Driver>,
    host: HostMemory,
    /// The device's name in messages.
    label: String,
    /// The numbers of its family of GPUs.
    tuning: &'static Tuning,
    /// Allocations made, and bytes held now, on the device.
    allocations: AtomicU64,
    allocated_bytes: AtomicU64,
    /// The first release that failed since the last report: `Drop` has nobody to tell.
    failed_release: Mutex<Option<DriverError>>,
    /// Why the device was lost, once it was.
    lost: OnceLock<String>,
}

impl Device {
    /// Opens the device that the options name.
    ///
    /// # Errors
    /// `Error::Device` with everything that was tried.
    pub fn open(options: &GpuOptions) -> Result<Self> {
        Ok(Self::with_driver(driver::open(options)?))
    }

    /// Lists the devices of the options' platforms, opened or not, or says why a platform has none.
    pub fn survey(options: &GpuOptions) -> Vec<Survey> {
        driver::survey(options)
    }

    pub(super) fn with_driver(driver: Box<dyn Driver>) -> Self {
        Self::on_host(driver, HostMemory::default())
    }

    pub(super) fn on_host(driver: Box<dyn Driver>, host: HostMemory) -> Self {
        let properties = driver.properties();
        let (label, tuning) = (properties.label(), Tuning::of(properties));
        let inner = Inner {
            driver,
            host,
            label,
            tuning,
            allocations: AtomicU64::new(0),
            allocated_bytes: AtomicU64::new(0),
            failed_release: Mutex::new(None),
            lost: OnceLock::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub fn properties(&self) -> &DeviceProperties {
        self.inner.driver.properties()
    }

    /// The device's name in messages: its index, name and architecture.
    pub fn label(&self) -> &str {
        &self.inner.label
    }

    /// Names the family whose numbers kernels are launched by, for reports, and says whether they were measured.
    pub fn tuned_as(&self) -> String {
        self.inner.tuning.to_string()
    }

    /// The numbers of its family of GPUs, in the mode that is asked for.
    pub(super) fn tuning(&self, options: &GpuOptions) -> Tuning {
        match options.batch_invariant {
            true => self.inner.tuning.batch_invariant(),
            false => *self.inner.tuning,
        }
    }

    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.call(|driver| driver.memory_info())
    }

    /// Bytes that may be taken: what the driver calls free, but no more than is left of the device's memory in all.
    /// Memory that is the host's too is no more than the host can spare: drivers of such devices count as free what
    /// other programs use, and what they give out is pinned.
    pub fn free_memory(&self) -> Result<u64> {
        let MemoryInfo { free, total } = self.memory_info()?;
        let free = free.min(total.saturating_sub(self.allocated_bytes()));
        let spare = if self.properties().integrated { self.inner.host.available_to_device() } else { None };
        Ok(spare.map_or(free, |spare| free.min(spare)))
    }

    /// Allocations of device memory since the device was opened.
    pub fn allocations(&self) -> u64 {
        self.inner.allocations.load(Ordering::Relaxed)
    }

    /// Device memory held now.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.allocated_bytes.load(Ordering::Relaxed)
    }

    /// Reports, once, a release that failed since the last report, and always that the device was lost.
    pub fn check(&self) -> Result<()> {
        if let Some(reason) = self.inner.lost.get() {
            return Err(Error::EngineDead { reason: reason.clone() });
        }
        match self.inner.failed_release.lock().take() {
            Some(error) => Err(self.error(error)),
            None => Ok(()),
        }
    }

    /// Makes the device current on this thread, for a library that works on whichever is.
    pub(super) fn make_current(&self) -> Result<()> {
        self.inner.driver.make_current().map_err(|error| self.error(error))
    }

    /// Makes a call of the driver, with the device current on this thread. That is set anew each time: another library
    /// in the process may have made another device current, and threads start with device 0.
    pub(super) fn call<T>(&self, call: impl FnOnce(&dyn Driver) -> Outcome<T>) -> Result<T> {
        self.try_call(call).map_err(|error| self.error(error))
    }

    /// Makes a call where the caller can do better than an `Error::Device`.
    pub(super) fn try_call<T>(&self, call: impl FnOnce(&dyn Driver) -> Outcome<T>) -> Outcome<T> {
        let driver = &*self.inner.driver;
        driver.make_current()?;
        call(driver)
    }

    /// Like `try_call`, for a call that gives something back or ends it: it is made even where the device could not be
    /// made current, for nobody would make it later. Where it then succeeds, the device was.
    pub(super) fn try_ending<T>(&self, call: impl FnOnce(&dyn Driver) -> Outcome<T>) -> Outcome<T> {
        let driver = &*self.inner.driver;
        let current = driver.make_current();
        call(driver).map_err(|error| current.err().unwrap_or(error))
    }

    /// Makes a call for `Drop`: its failure is kept for the next `check`. That the device is lost is no news then.
    pub(super) fn release(&self, call: impl FnOnce(&dyn Driver) -> Outcome<()>) {
        if let Err(error) = self.try_ending(call) {
            if error.failure() == Failure::DeviceLost {
                self.error(error);
            } else {
                self.inner.failed_release.lock().get_or_insert(error);
            }
        }
    }

    /// Converts a driver's error to the crate's, and remembers the loss of the device.
    pub(super) fn error(&self, error: DriverError) -> Error {
        let failure = error.failure();
        let error = error.into_error(&self.inner.label);
        if failure == Failure::DeviceLost
            && let Error::EngineDead { reason } = &error
        {
            tracing::error!("{reason}");
            // The first reason is the cause; later calls fail because of it.
            let _ = self.inner.lost.set(reason.clone());
        }
        error
    }

    pub(super) fn count_allocation(&self, bytes: u64) {
        self.inner.allocations.fetch_add(1, Ordering::Relaxed);
        self.inner.allocated_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_free(&self, bytes: u64) {
        self.inner.allocated_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.inner.label)
    }
}
