//! Lists of the rows that a kernel processes, with its arguments for each.

use crate::Result;
use crate::{Device, DeviceBuffer, DevicePtr, HostBuffer, KernelArgs, Stream};

/// One struct per row, on the host and on the device.
pub(super) struct RowArgs<A> {
    host: HostBuffer,
    device: DeviceBuffer,
    list: Vec<A>,
}

/// Returns the bytes for `rows` rows on the host, which equal those on the device.
pub(super) fn bytes<A>(rows: usize) -> usize {
    size_of::<A>().saturating_mul(rows.max(1))
}

impl<A: KernelArgs> RowArgs<A> {
    pub(super) fn new(device: &Device, max_rows: usize) -> Result<Self> {
        let bytes = bytes::<A>(max_rows);
        let (host, device) = (HostBuffer::new(device, bytes)?, DeviceBuffer::new(device, bytes as u64)?);
        Ok(Self { host, device, list: Vec::with_capacity(max_rows) })
    }

    /// Removes the last step's rows.
    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    /// Adds a row, and returns its index in the list.
    pub(super) fn add(&mut self, row: A) -> usize {
        self.list.push(row);
        self.list.len() - 1
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, A> {
        self.list.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Queues the copy of the list, and returns its address for the kernel.
    ///
    /// # Safety
    /// The last step's copy has run.
    pub(super) unsafe fn queue(&mut self, stream: &Stream) -> Result<DevicePtr> {
        let places = self.host.as_mut_slice().chunks_mut(size_of::<A>());
        places.zip(&self.list).for_each(|(place, row)| row.store(place));
        let used = self.list.len() * size_of::<A>();
        let to = self.device.slice().part(0, used as u64)?;
        // SAFETY: the host's buffer is written again only for the next step (the caller's promise).
        unsafe { stream.copy_to_device(to, &self.host.as_slice()[..used])? };
        Ok(to.ptr())
    }
}
