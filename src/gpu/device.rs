//! A device and its failures: every call of the driver goes through here.

pub(crate) mod arena;
pub(crate) mod code_object;
pub(crate) mod copies;
pub(crate) mod graph;
pub(crate) mod memory;
mod queue;
pub(crate) mod stream;
pub(crate) mod transfers;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

use parking_lot::Mutex;

use super::driver::{self, DeviceProperties, Driver, DriverError, Failure, MemoryInfo, Outcome, Survey};
use super::system::free_memory;
use super::tuning::Tuning;
use crate::backend::host_memory::HostMemory;
use crate::config::{GpuOptions, Platform};
use crate::{Error, Result};

/// An opened device. Clones share it and it closes with the last one. Every object on the device holds a clone.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Box<dyn Driver>,
    host: HostMemory,
    /// The device's name in messages.
    label: String,
    /// The tuning table of its GPU family.
    tuning: &'static Tuning,
    /// Allocations made so far, and bytes held now, on the device.
    allocations: AtomicU64,
    allocated_bytes: AtomicU64,
    /// The first release that failed since the last report, because `Drop` cannot report it.
    failed_release: Mutex<Option<DriverError>>,
    /// Why the device was lost, once it was.
    lost: OnceLock<String>,
    /// Done once a message has said that the free memory is estimated.
    estimating: Once,
}

impl Device {
    /// Opens the device that the options name.
    ///
    /// # Errors
    /// `Error::Device` with everything that was tried.
    pub fn open(options: &GpuOptions) -> Result<Self> {
        Ok(Self::with_driver(driver::open(options)?))
    }

    /// Lists the devices of the options' platforms, opened or not, or the reason why a platform has none.
    pub fn survey(options: &GpuOptions) -> Vec<Survey> {
        driver::survey(options)
    }

    /// True if AMD's driver library is installed. This opens it.
    pub(super) fn amd_is_installed(options: &GpuOptions) -> bool {
        driver::amd_is_installed(options)
    }

    /// Forgets earlier findings about AMD's driver, and probes it again.
    pub fn probe_anew(options: &GpuOptions) {
        driver::probe_anew(options);
    }

    pub(super) fn with_driver(driver: Box<dyn Driver>) -> Self {
        Self::on_host(driver, HostMemory::default())
    }

    pub(super) fn on_host(driver: Box<dyn Driver>, host: HostMemory) -> Self {
        let tuning = Tuning::of(driver.properties());
        Self::tuned(driver, host, tuning)
    }

    /// Creates a device whose launches are planned by this table.
    pub(super) fn tuned(driver: Box<dyn Driver>, host: HostMemory, tuning: &'static Tuning) -> Self {
        let label = driver.properties().label();
        let inner = Inner {
            driver,
            host,
            label,
            tuning,
            allocations: AtomicU64::new(0),
            allocated_bytes: AtomicU64::new(0),
            failed_release: Mutex::new(None),
            lost: OnceLock::new(),
            estimating: Once::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub fn properties(&self) -> &DeviceProperties {
        self.inner.driver.properties()
    }

    /// Returns the device's name in messages: its index, name and architecture.
    pub fn label(&self) -> &str {
        &self.inner.label
    }

    /// Names the tuning table of its GPU family for reports, and says if the table was measured.
    pub fn tuned_as(&self) -> String {
        self.inner.tuning.to_string()
    }

    /// Returns the tuning table of its GPU family, in the mode of the options.
    pub(super) fn tuning(&self, options: &GpuOptions) -> Tuning {
        let tuning = self.inner.tuning.with(&options.tuning);
        if options.batch_invariant { tuning.batch_invariant() } else { tuning }
    }

    /// Returns free and total memory from the driver. On AMD it may be an estimate, since some releases of the driver
    /// fail to tell it on some cards.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        match self.try_call(|driver| driver.memory_info()) {
            Err(error) if error.failure() == Failure::Other && self.properties().platform == Platform::Amd => {
                Ok(self.estimated_memory(&error))
            }
            told => told.map_err(|error| self.error(error)),
        }
    }

    /// Asks the kernel driver's files for the card's free memory. Without them, nine tenths of the total minus our own
    /// allocations are assumed to be free.
    fn estimated_memory(&self, error: &DriverError) -> MemoryInfo {
        let properties = self.properties();
        let total = properties.memory;
        let bus = properties.bus.as_deref().filter(|_| !properties.integrated);
        let (free, by) = match bus.and_then(|bus| free_memory(self.inner.host.root(), bus)) {
            Some(free) => (free, "the kernel driver's files"),
            None => ((total - total / 10).saturating_sub(self.allocated_bytes()), "an estimate"),
        };
        self.inner.estimating.call_once(|| tracing::warn!("{self:?}: {error}; its free memory is by {by}"));
        MemoryInfo { free, total }
    }

    /// Returns the bytes that may be allocated: the driver's free memory, but at most what is left of the device's
    /// total. On a device that shares the host's memory it is also at most what the host can spare. Drivers of such
    /// devices count memory of other programs as free, and pin what they allocate.
    pub fn free_memory(&self) -> Result<u64> {
        let MemoryInfo { free, total } = self.memory_info()?;
        let free = free.min(total.saturating_sub(self.allocated_bytes()));
        let spare = if self.properties().integrated { self.inner.host.available_to_device() } else { None };
        Ok(spare.map_or(free, |spare| free.min(spare)))
    }

    /// Returns the bytes of page-locked memory for weights that do not fit on the device. On a device that shares the
    /// host's memory, they compete with the `taken` bytes that the device is about to take.
    pub(super) fn host_room(&self, taken: u64) -> u64 {
        let room = self.inner.host.available_for_weights();
        if self.properties().integrated { room.saturating_sub(taken) } else { room }
    }

    /// Returns the number of device allocations since the device was opened.
    pub fn allocations(&self) -> u64 {
        self.inner.allocations.load(Ordering::Relaxed)
    }

    /// Returns the device memory held now.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.allocated_bytes.load(Ordering::Relaxed)
    }

    /// Reports a failed release once, and a lost device always.
    pub fn check(&self) -> Result<()> {
        if let Some(reason) = self.inner.lost.get() {
            return Err(Error::EngineDead { reason: reason.clone() });
        }
        match self.inner.failed_release.lock().take() {
            Some(error) => Err(self.error(error)),
            None => Ok(()),
        }
    }

    /// Makes the device current on this thread, for a library that works on the current device.
    pub(super) fn make_current(&self) -> Result<()> {
        self.inner.driver.make_current().map_err(|error| self.error(error))
    }

    /// Calls the driver with the device current on this thread. It is set before every call: another library in the
    /// process may have made another device current, and threads start with device 0.
    pub(super) fn call<T>(&self, call: impl FnOnce(&dyn Driver) -> Outcome<T>) -> Result<T> {
        self.try_call(call).map_err(|error| self.error(error))
    }

    /// Calls the driver, for a caller that handles the driver's own error.
    pub(super) fn try_call<T>(&self, call: impl FnOnce(&dyn Driver) -> Outcome<T>) -> Outcome<T> {
        let driver = &*self.inner.driver;
        driver.make_current()?;
        call(driver)
    }

    /// Like `try_call`, for a call that releases or ends something. It is made even if the device could not be made
    /// current, since nobody would make it later. If it then succeeds, that failure does not matter.
    pub(super) fn try_ending<T>(&self, call: impl FnOnce(&dyn Driver) -> Outcome<T>) -> Outcome<T> {
        let driver = &*self.inner.driver;
        let current = driver.make_current();
        call(driver).map_err(|error| current.err().unwrap_or(error))
    }

    /// Calls the driver from `Drop`: a failure is kept for the next `check`, except for a lost device.
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
