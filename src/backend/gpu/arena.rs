//! Device memory that is handed out from its start.

use super::DeviceBuffer;

/// Alignment in bytes of everything that is handed out.
pub(super) const ALIGN: u64 = 256;

/// Bytes that `bytes` take where something follows them.
pub(super) fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

/// The memory, and how many of its bytes are taken. Without memory it has room for nothing.
#[derive(Default)]
pub(super) struct Arena {
    memory: Option<DeviceBuffer>,
    used: u64,
}

impl Arena {
    pub(super) fn new(memory: DeviceBuffer) -> Self {
        Self { memory: Some(memory), used: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, DeviceBuffer::bytes)
    }

    /// Room for `bytes`, or `None` where so many are not left.
    pub(super) fn take(&mut self, bytes: u64) -> Option<DeviceBuffer> {
        let at = aligned(self.used);
        let taken = self.memory.as_ref()?.part(at, bytes).ok()?;
        self.used = at + bytes;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::gpu::Device;
    use crate::backend::gpu::driver::fake::Fake;

    #[test]
    fn what_is_taken_is_aligned_apart_and_inside() {
        let device = Device::with_driver(Box::new(Fake::new()));
        let memory = DeviceBuffer::new(&device, 700).unwrap();
        let start = memory.ptr().address();
        let mut arena = Arena::new(memory);
        let (first, second) = (arena.take(300).unwrap(), arena.take(100).unwrap());
        assert_eq!((first.ptr().address(), first.bytes()), (start, 300));
        assert_eq!((second.ptr().address(), second.bytes()), (start + 512, 100));
        assert!(arena.take(1).is_none());
        assert!(arena.take(u64::MAX).is_none());
        assert!(Arena::default().take(1).is_none());
        // A part that was taken keeps the memory alive.
        drop((arena, first));
        assert_eq!(device.allocated_bytes(), 700);
        drop(second);
        assert_eq!(device.allocated_bytes(), 0);
    }
}
