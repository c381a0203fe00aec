//! Memory that frees itself: device memory and page-locked host memory.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use super::Device;
use crate::driver::Failure;
use crate::{Error, Result};

/// An address in the form that kernels and libraries take, with null for "none". It is made from a [`DeviceSlice`] when
/// the arguments of a launch are filled in. Safe code can do nothing else with it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePtr(u64);

impl DevicePtr {
    pub const NULL: Self = Self(0);

    /// Returns the address, for the arguments of a kernel or library.
    pub(crate) fn address(self) -> u64 {
        self.0
    }

    /// Creates an address of any bits, for an argument that no kernel is launched with.
    #[cfg(test)]
    pub(crate) fn of_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// `None` becomes null.
impl From<Option<DeviceSlice<'_>>> for DevicePtr {
    fn from(slice: Option<DeviceSlice<'_>>) -> Self {
        slice.map_or(Self::NULL, DeviceSlice::ptr)
    }
}

/// One allocation of device memory, which Drop frees at once. The owner must first wait for queued work that uses it,
/// or drop the streams, which wait. Both drivers wait in a free, too, but neither promises it.
#[derive(Debug)]
struct DeviceAllocation {
    device: Device,
    address: u64,
    bytes: u64,
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        // SAFETY: allocated by `DeviceBuffer::new`, this is the only owner, and work that used it has run (see above).
        self.device.release(|driver| unsafe { driver.free(self.address) });
        self.device.count_free(self.bytes);
    }
}

/// Memory that kernels use by its address.
#[derive(Debug)]
enum Allocation {
    Device(DeviceAllocation),
    /// The host itself does not touch it.
    Host(MappedBuffer),
}

impl Allocation {
    fn address(&self) -> u64 {
        match self {
            Self::Device(allocation) => allocation.address,
            Self::Host(memory) => memory.address,
        }
    }
}

/// Memory of kernels, uninitialised at first: an allocation, or a part of one. It is device memory, or page-locked
/// memory of the host that kernels use over the bus. Parts and clones share the ownership of the allocation; dropping
/// the last one frees it.
#[derive(Debug, Clone)]
pub struct DeviceBuffer {
    allocation: Arc<Allocation>,
    /// Start of the part, in bytes from the start of the allocation.
    start: u64,
    bytes: u64,
}

impl DeviceBuffer {
    /// Allocates device memory.
    ///
    /// # Errors
    /// `Error::OutOfMemory` with the free bytes.
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
        let allocation = Allocation::Device(DeviceAllocation { device: device.clone(), address, bytes });
        Ok(Self { allocation: Arc::new(allocation), start: 0, bytes })
    }

    /// Allocates page-locked memory of the host.
    ///
    /// # Errors
    /// See `HostBuffer::new`.
    pub fn on_host(device: &Device, bytes: u64) -> Result<Self> {
        let size =
            usize::try_from(bytes).map_err(|_| Error::internal(format!("{bytes} bytes of the host's memory")))?;
        let allocation = Allocation::Host(MappedBuffer::new(device, size)?);
        Ok(Self { allocation: Arc::new(allocation), start: 0, bytes })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the part of `bytes` bytes that starts at `at`. It keeps the allocation alive.
    ///
    /// # Errors
    /// See `DeviceSlice::part`.
    pub fn part(&self, at: u64, bytes: u64) -> Result<Self> {
        self.slice().part(at, bytes)?;
        Ok(Self { allocation: Arc::clone(&self.allocation), start: self.start + at, bytes })
    }

    /// Borrows all of it.
    pub fn slice(&self) -> DeviceSlice<'_> {
        DeviceSlice { address: self.allocation.address() + self.start, bytes: self.bytes, owner: PhantomData }
    }

    /// Returns the address of its start, for an argument of a launch.
    pub fn ptr(&self) -> DevicePtr {
        self.slice().ptr()
    }

    /// Returns the bytes of page-locked memory of the host, as the source of a copy.
    ///
    /// # Errors
    /// `Error::Internal` for device memory.
    pub fn host_bytes(&self) -> Result<&[u8]> {
        match &*self.allocation {
            // Parts are inside of their allocation, and a slice of the host has fewer bytes than a `usize` counts.
            Allocation::Host(memory) => Ok(&memory.host.as_slice()[self.start as usize..][..self.bytes as usize]),
            Allocation::Device(_) => Err(Error::internal("device memory as the host's")),
        }
    }
}

impl DeviceBuffer {
    /// Returns the address of page-locked memory for the host, which may write there as a kernel may.
    ///
    /// # Errors
    /// `Error::Internal` for device memory.
    pub(crate) fn host_address(&self) -> Result<NonNull<u8>> {
        match &*self.allocation {
            // SAFETY: parts are inside of their allocation.
            Allocation::Host(memory) => Ok(unsafe { memory.host.address.add(self.start as usize) }),
            Allocation::Device(_) => Err(Error::internal("device memory as the host's")),
        }
    }
}

/// A borrowed part of a [`DeviceBuffer`] or a [`MappedBuffer`]. Ops pass it on without reference counting.
#[derive(Debug, Clone, Copy)]
pub struct DeviceSlice<'b> {
    address: u64,
    bytes: u64,
    owner: PhantomData<&'b ()>,
}

impl DeviceSlice<'_> {
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the address of its start, for an argument of a launch.
    pub fn ptr(self) -> DevicePtr {
        DevicePtr(self.address)
    }

    /// Returns the part of `bytes` bytes that starts at `at`.
    ///
    /// # Errors
    /// `Error::Internal` if it exceeds this slice.
    pub fn part(self, at: u64, bytes: u64) -> Result<Self> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(Self { address: self.address + at, bytes, ..self }),
            _ => Err(Error::internal(format!("{bytes} bytes at {at} of {} bytes of device memory", self.bytes))),
        }
    }

    /// Returns the part after the first `at` bytes.
    ///
    /// # Errors
    /// See `part`.
    pub fn after(self, at: u64) -> Result<Self> {
        self.part(at, self.bytes.saturating_sub(at))
    }
}

/// Page-locked host memory: the device copies from and to it without the driver's staging. It is zeroed.
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

/// Page-locked host memory that kernels also read.
#[derive(Debug)]
pub struct MappedBuffer {
    host: HostBuffer,
    /// Its address for kernels.
    address: u64,
}

impl MappedBuffer {
    /// # Errors
    /// See `HostBuffer::new`.
    pub fn new(device: &Device, bytes: usize) -> Result<Self> {
        let host = HostBuffer::new(device, bytes)?;
        // SAFETY: the memory was just allocated.
        let address = device.call(|driver| unsafe { driver.host_on_device(host.address) })?;
        Ok(Self { host, address })
    }

    /// Returns the memory for the host.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.host.as_mut_slice()
    }

    /// Returns the memory for kernels.
    pub fn slice(&self) -> DeviceSlice<'_> {
        DeviceSlice { address: self.address, bytes: self.host.bytes as u64, owner: PhantomData }
    }
}
