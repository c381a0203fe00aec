//! Memory that frees itself: on the device, and page-locked on the host.

use std::ptr::NonNull;

use super::device::Device;
use super::driver::Failure;
use crate::{Error, Result};

/// An address on the device; null where a kernel takes "none".
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    pub const NULL: Self = Self(0);

    /// The address `bytes` further on. Inside one allocation this cannot overflow; `DeviceBuffer::range` checks that
    /// it is inside.
    pub const fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// One allocation of device memory. Uninitialised. Drop frees it at once: whoever queued work on it has waited for that
/// work, or dropped the streams (which wait) before. Both drivers wait too, but neither promises it.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Device,
    address: u64,
    bytes: u64,
}

impl DeviceBuffer {
    /// # Errors
    /// `Error::OutOfMemory` with what is free.
    pub fn new(device: &Device, bytes: u64) -> Result<Self> {
        device.check()?;
        if bytes == 0 {
            return Err(Error::internal("a device buffer of 0 bytes"));
        }
        let address = device.try_call(|driver| driver.allocate(bytes)).map_err(|error| match error.failure() {
            Failure::OutOfMemory => Error::OutOfMemory {
                what: format!("an allocation on {}", device.label()),
                requested: bytes,
                available: device.memory_info().map_or(0, |info| info.free),
                advice: "end other programs that use the device, or lower kv_cache_memory, max_num_seqs or \
                         max_num_batched_tokens",
            },
            _ => device.error(error),
        })?;
        if address == 0 {
            return Err(Error::Device { device: device.label().into(), problem: "an allocation at address 0".into() });
        }
        device.count_allocation(bytes);
        Ok(Self { device: device.clone(), address, bytes })
    }

    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.address)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// `Error::Internal` if they are not all inside.
    pub fn range(&self, offset: u64, bytes: u64) -> Result<DevicePtr> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.ptr().offset(offset)),
            _ => Err(Error::internal(format!("{bytes} bytes at {offset} of a device buffer of {}", self.bytes))),
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, this is the only owner, and work that used it has run (see above).
        self.device.release(|driver| unsafe { driver.free(self.address) });
        self.device.count_free(self.bytes);
    }
}

/// Page-locked host memory: what the device copies from and to without the driver's detour, and kernels may read.
/// Zeroed.
#[derive(Debug)]
pub struct HostBuffer {
    device: Device,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory with one owner; the driver frees it from any thread.
unsafe impl Send for HostBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        device.check()?;
        if bytes == 0 {
            return Err(Error::internal("a pinned host buffer of 0 bytes"));
        }
        let address = device.try_call(|driver| driver.allocate_host(bytes)).map_err(|error| match error.failure() {
            Failure::OutOfMemory => Error::OutOfMemory {
                what: "page-locked host memory".into(),
                requested: bytes as u64,
                available: 0,
                advice: "raise the limit of locked memory (ulimit -l), or end other programs that lock memory",
            },
            _ => device.error(error),
        })?;
        // SAFETY: just allocated with this size; without it `as_slice` would show uninitialised memory.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// Where kernels find it.
    pub fn on_device(&self) -> Result<DevicePtr> {
        // SAFETY: allocated by `new`.
        self.device.call(|driver| unsafe { driver.host_on_device(self.address) }).map(DevicePtr)
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes that we own. A copy from the device writes them only under a contract that
        // forbids reading meanwhile (`Stream::copy_to_host`).
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, this is the only owner, and copies that use it have passed (their contract).
        self.device.release(|driver| unsafe { driver.free_host(self.address) });
    }
}
